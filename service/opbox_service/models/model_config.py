"""ModelConfig: what `model.toml` says of a model that its files do not.

max_batch = 16
versions = "latest"

[inputs.data]
shape = [-1, 3, 224, 224]
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from opbox_protocol.datatypes import DATATYPES
from opbox_protocol.errors import BadRequestError

from ..validation import Expected, Strict, explain
from .warmup import Warmup

__all__ = ["CONFIG_FILE", "ModelConfig", "ReplicaRange", "TensorConfig", "devices_of", "read_config"]

CONFIG_FILE = "model.toml"
Dimension = Annotated[int, Field(ge=-1), Expected("a length, or -1 for one that varies")]


class TensorConfig(Strict):
    """What is known of an input."""

    shape: list[Dimension] | None = Field(default=None, description="Lengths of its axes; -1: varies.")
    datatype: Literal[tuple(DATATYPES)] | None = Field(  # type: ignore[valid-type]  # a table's, which no checker reads
        default=None, description="Its element type, by the Open Inference Protocol's name."
    )


class ReplicaRange(Strict):
    """How many nodes of a cluster serve a model, by its requests."""

    min: int = Field(default=1, ge=0, le=1000, description="Replicas that there are at any time.")
    max: int = Field(ge=1, le=1000, description="Replicas that there are at most.")
    target: int = Field(default=8, ge=1, description="Requests in flight per replica above which there is one more.")


class ModelConfig(Strict):
    """The fields of `model.toml`; all may be left out."""

    inputs: Mapping[str, TensorConfig] = Field(default={}, description="By argument: what the graph does not say.")
    outputs: list[str] | None = Field(default=None, description="The outputs to answer; by default all of the graph.")
    batch_axis: int | None = Field(default=0, ge=0, description="The axis of inputs and outputs that counts examples.")
    max_batch: int = Field(default=1, ge=1, le=4096, description="The most examples of a run; 1: no batching.")
    max_delay_us: int = Field(
        default=0, ge=0, le=10_000_000, description="Microseconds that a run waits for more examples, if there are few."
    )
    batch_sizes: list[Annotated[int, Field(ge=1)]] = Field(
        default=[], description="Sizes that runs are padded to; by default powers of two up to `max_batch`."
    )
    max_queue: int = Field(default=128, ge=1, description="The most requests that wait for a run.")
    response_cache: bool = Field(
        default=False,
        description="Whether answers are kept for requests that come again; see OPBOX_RESPONSE_CACHE_BYTES.",
    )
    labels: str | None = Field(default=None, description="A text file with a class's name on each line.")
    device: Annotated[str | list[str] | None, Expected("a device, or a list of devices")] = Field(
        default=None, description="Where it runs: cpu, gpu or gpu:1, or several of them; by default the server's."
    )
    replicas: Annotated[int | ReplicaRange | None, Expected("a number, or a table with max, min and target")] = Field(
        default=None, description="How many nodes of a cluster serve it; by default all. A single server ignores it."
    )
    versions: Annotated[Literal["latest", "all"] | list[int], Expected("'latest', 'all' or a list of versions")] = (
        Field(default="latest", description="The versions to serve: the newest, all, or those listed.")
    )
    warmup: list[Warmup] = Field(default=[], description="Requests to run before a version is ready.")
    inner_values: bool | None = Field(
        default=None,
        description="Whether requests may name values inside it and gradients, which give its parameters away; by "
        "default those of the owner who published it, and all for a model of the server's folder.",
    )
    owners: list[str] | None = Field(default=None, description="Who may call it; by default every owner.")


def devices_of(config: Mapping[str, Any]) -> list[str | None]:
    """The devices that a model's file names; None: the server's.

    Example:
        >>> devices_of({"device": ["gpu:0", "gpu:1"]})
        ['gpu:0', 'gpu:1']
    """
    device = config.get("device")
    return device if isinstance(device, list) else [device]


def read_config(path: Path) -> ModelConfig:
    """Read a `model.toml`; without one every field has its default.

    Raises:
        BadRequestError: the file is no TOML, or has an unknown key or a wrong value; says the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ModelConfig()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadRequestError(f"{path.name}: cannot be read ({reason})") from None
    try:
        return ModelConfig.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise BadRequestError(f"{path.name}: expected TOML, got another text: {error}") from None
    except (ValueError, RecursionError) as error:
        if not isinstance(error, ValidationError):  # TOML has neither a largest number nor a deepest list
            raise BadRequestError(f"{path.name}: expected smaller numbers or flatter lists, got larger ones") from None
        item = error.errors(include_url=False)[0]
        line = line_of(text, item["loc"])
        raise BadRequestError(f"{path.name}, line {line}: {explain(item, ModelConfig, item['loc'])}") from None


def line_of(text: str, keys: Sequence[Any]) -> int:
    """The line of a TOML text on which a key stands, given the tables above it; the nearest table's where it is inline.

    Example:
        >>> line_of("a = 1\\n[inputs.data]\\nshap = [1]\\n", ["inputs", "data", "shap"])
        3
    """
    names = [str(key) for key in keys if isinstance(key, str)]
    table: list[str] = []
    nearest, depth = 1, 0
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line)
        entry = re.match(r"\s*([^#=\[]+?)\s*=", line)
        if header is not None:
            path = table = _dotted(header[1])
        elif entry is not None:
            path = [*table, *_dotted(entry[1])]
        else:
            continue
        if len(path) > depth and path == names[: len(path)]:
            nearest, depth = number, len(path)
    return nearest


def _dotted(key: str) -> list[str]:
    """The parts of a key such as inputs."my data"."""
    return [part.strip().strip("\"'") for part in re.findall(r'"[^"]*"|\'[^\']*\'|[^.]+', key)]
