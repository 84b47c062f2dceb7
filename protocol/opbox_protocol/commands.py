"""The commands of a session as they are written in JSON: what the client sends and the server's models accept.

A command is an object whose field `do` names it; ids are numbers that the client chooses. The tensors of `put` and
`write` travel beside the commands, under the name in `tensor`. What a command does, and the limits of its fields, stand
with the server's model of it; a test compares the two, field by field.

    session.record(Forward(do="forward", executor=7, is_train=True))
"""

# No postponed annotations: with them TypedDict does not see NotRequired (Python 3.11 to 3.13).

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, get_args

__all__ = [
    "COMMANDS",
    "Backward",
    "Bind",
    "Checkpoint",
    "Command",
    "Compile",
    "Compress",
    "CompressCall",
    "Copy",
    "Dataset",
    "Define",
    "Describe",
    "DescribeExecutor",
    "Fetch",
    "Forward",
    "Free",
    "InferShape",
    "InferType",
    "Invoke",
    "InvokeAgain",
    "KeepRows",
    "KernelArguments",
    "KernelSource",
    "Launch",
    "OtherAttrs",
    "Put",
    "PutRows",
    "RecordProfile",
    "ReportMetrics",
    "Restore",
    "Seed",
    "TakeRows",
    "Update",
    "UpdateCall",
    "UseDevice",
    "View",
    "ViewPart",
    "Write",
    "Zeros",
]


class Put(TypedDict):
    do: Literal["put"]
    id: int
    tensor: NotRequired[str]


class Write(TypedDict):
    do: Literal["write"]
    id: int
    tensor: NotRequired[str]


class Zeros(TypedDict):
    do: Literal["zeros"]
    ids: Sequence[int]
    shape: Sequence[int]
    dtype: str


Copy = TypedDict("Copy", {"do": Literal["copy"], "from": int, "to": int})


class ViewPart(TypedDict, total=False):
    """The part of an array that a view shows."""

    begin: int | None
    end: int | None
    at: int | None
    shape: Sequence[int] | None


class View(ViewPart):
    do: Literal["view"]
    id: int
    of: int


Fetch = TypedDict("Fetch", {"do": Literal["fetch"], "id": int, "as": str})


class Describe(TypedDict):
    do: Literal["describe"]
    id: int


class Free(TypedDict):
    do: Literal["free"]
    ids: Sequence[int]


class Invoke(TypedDict):
    do: Literal["invoke"]
    op: str
    attrs: NotRequired[Mapping[str, Any]]
    inputs: NotRequired[Sequence[int]]
    outputs: NotRequired[Sequence[int | None]]
    into: NotRequired[bool]
    is_train: NotRequired[bool]


class InvokeAgain(TypedDict):
    """An earlier `invoke` of the batch on other arrays; `of` is its number."""

    do: Literal["invoke_again"]
    of: int
    inputs: NotRequired[Sequence[int]]
    outputs: NotRequired[Sequence[int | None]]
    into: NotRequired[bool]


class UpdateCall(TypedDict):
    inputs: Sequence[int]
    attrs: NotRequired[Mapping[str, Any]]


class OtherAttrs(TypedDict):
    """Attributes of some calls of an update; `calls` are their numbers."""

    calls: Sequence[int]
    attrs: Mapping[str, Any]


class Update(TypedDict):
    """Calls one by one in `calls`; or `inputs`, for each input of the operator its arrays in all calls."""

    do: Literal["update"]
    op: str
    attrs: NotRequired[Mapping[str, Any]]
    calls: NotRequired[Sequence[UpdateCall] | None]
    inputs: NotRequired[Sequence[Sequence[int]] | None]
    other_attrs: NotRequired[Sequence[OtherAttrs]]


class CompressCall(TypedDict):
    gradient: int
    residual: int
    out: int


class Compress(TypedDict):
    """2-bit gradient compression; `out` are new arrays."""

    do: Literal["compress"]
    threshold: float
    calls: Sequence[CompressCall]


class Seed(TypedDict):
    do: Literal["seed"]
    seed: int


class Bind(TypedDict):
    do: Literal["bind"]
    id: int
    graph: Any
    args: NotRequired[Mapping[str, int]]
    grads: NotRequired[Mapping[str, int]]
    grad_req: NotRequired[Mapping[str, str]]
    aux: NotRequired[Mapping[str, int]]
    outputs: NotRequired[Sequence[int | None]]
    eliminate_common_expr: NotRequired[bool]


class Forward(TypedDict):
    do: Literal["forward"]
    executor: int
    is_train: NotRequired[bool]
    watch: NotRequired[Mapping[str, int]]


class Backward(TypedDict):
    do: Literal["backward"]
    executor: int
    head_grads: NotRequired[Sequence[int | None]]
    is_train: NotRequired[bool]
    watch: NotRequired[Sequence[int | None]]


class DescribeExecutor(TypedDict):
    do: Literal["describe_executor"]
    id: int


class KernelSource(TypedDict):
    """A kernel's source and how it is compiled."""

    kernel: str
    source: NotRequired[str | None]
    signature: NotRequired[str]
    options: NotRequired[Sequence[str]]
    exports: NotRequired[Sequence[str]]
    body: NotRequired[str | None]
    inputs: NotRequired[Mapping[str, int]]
    outputs: NotRequired[Mapping[str, int]]


class Compile(KernelSource):
    do: Literal["compile"]
    id: int


class KernelArguments(TypedDict):
    """A kernel's arguments and how it is launched."""

    args: NotRequired[Sequence[Mapping[str, Any]]]
    grid: Sequence[int]
    block: Sequence[int]
    shared: NotRequired[int]


class Launch(KernelArguments):
    do: Literal["launch"]
    kernel: int


class Define(TypedDict):
    do: Literal["define"]
    op: NotRequired[str]
    op_type: str
    sha256: str
    bundle: NotRequired[Mapping[str, Any] | None]
    live: NotRequired[Any]


class InferShape(TypedDict):
    do: Literal["infer_shape"]
    graph: NotRequired[Any]
    shapes: NotRequired[Mapping[str, Any]]
    partial: NotRequired[bool]
    as_mxnet: NotRequired[bool]
    trace: NotRequired[bool]


class InferType(TypedDict):
    do: Literal["infer_type"]
    graph: NotRequired[Any]
    types: NotRequired[Mapping[str, Any]]
    partial: NotRequired[bool]


class Checkpoint(TypedDict):
    do: Literal["checkpoint"]
    name: str
    arrays: NotRequired[Mapping[str, int] | None]
    executors: NotRequired[Sequence[int]]
    every: NotRequired[int]
    step: NotRequired[int]
    position: NotRequired[Mapping[str, int | float | str]]


class Restore(TypedDict):
    do: Literal["restore"]
    name: str
    arrays: NotRequired[Mapping[str, int] | None]
    takes_over: NotRequired[bool]


class ReportMetrics(TypedDict):
    """Losses and metrics of a training at this step, for who watches; None for what is no finite number."""

    do: Literal["report"]
    values: Mapping[str, float | None]
    epoch: NotRequired[int | None]


class RecordProfile(TypedDict):
    """What is timed from here on ("symbolic", "imperative", "api"), and how many events are reported."""

    do: Literal["profile"]
    record: NotRequired[Sequence[str] | None]
    take: NotRequired[int]


class UseDevice(TypedDict):
    """The commands behind it run on this device."""

    do: Literal["use_device"]
    device: str


class Dataset(TypedDict):
    """Open rows that stay: of a shape and type, with the blocks that the owner's store has; or of a named dataset."""

    do: Literal["dataset"]
    id: int
    shape: NotRequired[Sequence[int] | None]
    dtype: NotRequired[str | None]
    block_rows: NotRequired[int | None]
    blocks: NotRequired[Sequence[str]]
    name: NotRequired[str | None]
    array: NotRequired[str | None]


class PutRows(TypedDict):
    """Rows for a dataset: `rows` is the tensor of their numbers; or they stand one behind the other from `begin`."""

    do: Literal["put_rows"]
    id: int
    tensor: NotRequired[str]
    rows: NotRequired[str | None]
    begin: NotRequired[int | None]


class TakeRows(TypedDict):
    """Rows of the dataset `of` into an array: those of the tensor `rows`, or from `begin` to before `end`."""

    do: Literal["take_rows"]
    id: int
    of: int
    rows: NotRequired[str | None]
    begin: NotRequired[int | None]
    end: NotRequired[int | None]
    dtype: NotRequired[str | None]
    scale: NotRequired[float]


class KeepRows(TypedDict):
    """Save blocks of a dataset in the owner's store."""

    do: Literal["keep_rows"]
    id: int
    block_rows: int
    blocks: Sequence[int]


class JoinGroup(TypedDict):
    """Become a rank of a group of sessions; the result has the `address` for the other ranks."""

    do: Literal["join_group"]
    id: int
    rank: int
    size: int
    secret: str


class ConnectGroup(TypedDict):
    """Connect with all other ranks, whose addresses stand in their order."""

    do: Literal["connect_group"]
    id: int
    addresses: Sequence[str]
    timeout_s: NotRequired[float]


class AllReduce(TypedDict):
    """Sums over all ranks, as new arrays."""

    do: Literal["all_reduce"]
    group: int
    arrays: NotRequired[Sequence[int]]
    outputs: NotRequired[Sequence[int]]


Command: TypeAlias = (
    Put
    | Write
    | Zeros
    | Copy
    | View
    | Fetch
    | Describe
    | Free
    | Invoke
    | InvokeAgain
    | Update
    | Compress
    | Seed
    | Bind
    | Forward
    | Backward
    | DescribeExecutor
    | Compile
    | Launch
    | Define
    | InferShape
    | InferType
    | Checkpoint
    | Restore
    | ReportMetrics
    | RecordProfile
    | UseDevice
    | Dataset
    | PutRows
    | TakeRows
    | KeepRows
    | JoinGroup
    | ConnectGroup
    | AllReduce
)

COMMANDS: tuple[Any, ...] = get_args(Command)
"""Every command's shape."""
