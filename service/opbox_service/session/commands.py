"""The commands of a session, as they are written on the wire. `session/handlers.py` says what they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.json_schema import SkipJsonSchema

from opbox_protocol.errors import BadRequestError, ForbiddenError, LimitError

from ..settings import Scope

__all__ = ["Command", "Commands", "check_scopes", "parse"]

Id = Annotated[
    int, Field(ge=0, lt=1 << 63, description="Chosen by the client; arrays, executors and kernels share the numbers.")
]
Attrs = Annotated[dict[str, Any], Field(description="The operator's parameters, typed or as MXNet's strings.")]
Graph = Annotated[dict[str, Any] | str, Field(description='Symbol JSON, or "sha256:<hex>" of one sent before.')]


class Command(BaseModel):
    """Base: no unknown fields, no silent conversions.

    Attributes:
        scope: what a token needs beyond `run` for a batch with this command.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)
    scope: ClassVar[Scope] = "run"


class Put(Command):
    """A new array from a tensor of the request."""

    do: Literal["put"]
    id: Id
    tensor: str


class Write(Command):
    """A tensor of the request into an array that exists, in place, cast if need be."""

    do: Literal["write"]
    id: Id
    tensor: str


class Invoke(Command):
    """One operator on arrays. `outputs` are its visible outputs; null drops one."""

    do: Literal["invoke"]
    op: str
    attrs: Attrs = {}
    inputs: list[Id] = []
    outputs: list[Id | None] = []
    into: bool = Field(default=False, description="The outputs exist and are written in place.")
    is_train: bool = False


class Call(Command):
    """One call of an update."""

    inputs: list[Id] = Field(min_length=1)
    attrs: Attrs = {}


class Update(Command):
    """An optimizer's operator over many weights: output 0 goes into input 0 in place."""

    do: Literal["update"]
    op: str
    attrs: Attrs = {}
    calls: list[Call]


class Bind(Command):
    """An executor over arrays of the session; `outputs` become arrays that each run writes."""

    do: Literal["bind"]
    id: Id
    graph: Graph
    args: dict[str, Id] = {}
    grads: dict[str, Id] = {}
    grad_req: dict[str, Literal["write", "add", "null"]] = {}
    aux: dict[str, Id] = {}
    outputs: list[Id | None] = []


class Forward(Command):
    """Run an executor forward."""

    do: Literal["forward"]
    executor: Id
    is_train: bool = False


class Backward(Command):
    """Gradients into the bound arrays, as grad_req says; null where an output is a loss."""

    do: Literal["backward"]
    executor: Id
    head_grads: list[Id | None] = []


class Copy(Command):
    """One array into another, cast if need be; `to` is made when it does not exist."""

    do: Literal["copy"]
    source: Id = Field(alias="from")
    to: Id


class View(Command):
    """An array that shares memory with another: rows `begin` to `end`, row `at`, or another `shape`."""

    do: Literal["view"]
    id: Id
    of: Id
    begin: int | None = None
    end: int | None = None
    at: int | None = None
    shape: list[int] | None = None


class Fetch(Command):
    """An array into the answer's outputs, under the name `as`."""

    do: Literal["fetch"]
    id: Id
    name: str = Field(alias="as")


class Describe(Command):
    """Shape, datatype and device of an array, in the answer's results."""

    do: Literal["describe"]
    id: Id


class DescribeExecutor(Command):
    """An executor's memory and steps, in the answer's results."""

    do: Literal["describe_executor"]
    id: Id


class Free(Command):
    """Let go of arrays and executors; ids that do not exist are passed over."""

    do: Literal["free"]
    ids: list[Id]


class Seed(Command):
    """Seed the session's random source."""

    do: Literal["seed"]
    seed: int = Field(ge=0, lt=1 << 64)


class Compile(Command):
    """A kernel of CUDA source: `source` and `signature`, or the `body` of one over `inputs` and `outputs` (MXNet 0.9).

    The latter is compiled for the shapes and types of the arrays that it names, and again for those of a launch.
    """

    scope: ClassVar[Scope] = "upload-cuda"

    do: Literal["compile"]
    id: Id
    kernel: str = Field(max_length=512, description="Its name; axpy<float> for an instance of a template.")
    source: str | None = None
    signature: str = Field(default="", description="As in 'const float *x, float *y, int n'.")
    options: list[str] = Field(default=[], max_length=64, description="For the compiler: -DNAME=VALUE and the like.")
    exports: list[str] = Field(default=[], max_length=64, description="Instances of templates that the source has.")
    body: str | None = None
    inputs: dict[str, Id] = {}
    outputs: dict[str, Id] = {}


class ArrayArgument(BaseModel):
    """A kernel's pointer."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    array: Id


class NumberArgument(BaseModel):
    """A kernel's scalar."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    value: bool | int | float


Size = Annotated[int, Field(ge=1, lt=1 << 31)]


class Launch(Command):
    """Run a kernel over `grid` blocks of `block` threads."""

    do: Literal["launch"]
    kernel: Id
    args: list[ArrayArgument | NumberArgument] = []
    grid: list[Size] = Field(min_length=3, max_length=3)
    block: list[Size] = Field(min_length=3, max_length=3)
    shared: int = Field(default=0, ge=0, lt=1 << 30, description="Bytes of dynamic shared memory.")


class Define(Command):
    """The source of a user's operator, by content; graphs name it by `__code__`. It runs when it is first needed."""

    scope: ClassVar[Scope] = "upload-python"

    do: Literal["define"]
    op: Literal["Custom", "_NumpyOp", "_NDArrayOp"] = "Custom"
    op_type: str = Field(min_length=1, max_length=512)
    sha256: str = Field(max_length=80, description="Of the bundle's canonical JSON.")
    bundle: dict[str, Any] | None = Field(default=None, description="Pieces of source, exports, modules.")
    live: SkipJsonSchema[Any] = Field(default=None, description="A class: only from this very process.")


class InferShape(Command):
    """As POST /v1/infer_shape, for a graph with operators that the session has defined."""

    do: Literal["infer_shape"]
    graph: Graph
    shapes: dict[str, Any] = {}
    partial: bool = False
    trace: bool = False


class InferType(Command):
    """As POST /v1/infer_type, for a graph with operators that the session has defined."""

    do: Literal["infer_type"]
    graph: Graph
    types: dict[str, str] = {}
    partial: bool = False


Commands = (
    Put | Write | Invoke | Update | Bind | Forward | Backward | Copy | View | Fetch | Describe | DescribeExecutor
) | (Free | Seed | Compile | Launch | Define | InferShape | InferType)
_KINDS: dict[str, type[Command]] = {get_args(k.model_fields["do"].annotation)[0]: k for k in get_args(Commands)}
_ADAPTER: TypeAdapter[Any] = TypeAdapter(list[Annotated[Commands, Field(discriminator="do")]])


def parse(commands: Any, limit: int) -> Sequence[Command]:
    """The typed commands of a batch.

    Raises:
        BadRequestError: the command's number, what it expects and what it got.
        LimitError: more than `limit`.
    """
    if not isinstance(commands, list):
        kind = "nothing" if commands is None else type(commands).__name__
        raise BadRequestError(f"commands: expected a list of commands, got {kind}")
    if len(commands) > limit:
        raise LimitError(f"commands: expected at most {limit} in a batch, got {len(commands)}: send several batches")
    try:
        typed: list[Command] = _ADAPTER.validate_python(commands)
        return typed
    except ValidationError as error:
        raise _told(commands, error) from None


def check_scopes(commands: Sequence[Command], scopes: frozenset[Scope]) -> None:
    """ForbiddenError when a command needs more than the token that brought it has."""
    for number, command in enumerate(commands):
        if command.scope not in scopes and command.scope != "run":
            held = ", ".join(sorted(scopes)) or "none"
            raise ForbiddenError(
                f"command {number} ({type(command).__name__.lower()}): expected a token with the scope "
                f"{command.scope!r}, got one with {held}: use another token; nothing ran",
                detail={"command": number},
            )


def _told(commands: list[Any], error: ValidationError) -> BadRequestError:
    item: Mapping[str, Any] = error.errors(include_url=False, include_context=False)[0]
    place = item["loc"]
    number = place[0] if place else 0
    given = commands[number] if isinstance(number, int) else None
    do = given.get("do") if isinstance(given, dict) else None
    detail = {"command": number}
    if item["type"] in ("union_tag_invalid", "union_tag_not_found"):
        listed = ", ".join(_KINDS)
        return BadRequestError(f"command {number}: do: expected one of {listed}, got {do!r}", detail=detail)
    field = ".".join(str(part) for part in place[2:])
    where = f"command {number} ({do})" if do else f"command {number}"
    if item["type"] == "missing":
        return BadRequestError(f"{where}: {field}: expected a value, got nothing", detail=detail)
    if item["type"] == "extra_forbidden":
        known = [f.alias or name for name, f in _KINDS[str(do)].model_fields.items() if name != "do"]
        return BadRequestError(f"{where}: unknown field {field!r}: it takes {', '.join(known)}", detail=detail)
    wanted = str(item["msg"]).removeprefix("Input should be ").removeprefix("a valid ")
    got = repr(item.get("input"))
    return BadRequestError(f"{where}: {field or 'it'}: expected {wanted}, got {got[:80]}", detail=detail)
