"""LayerNorm, GroupNorm, InstanceNorm, L2Normalization, LRN, moments, BatchNorm_v1 and SyncBatchNorm."""

from typing import Any

from .case import FLOATS, Arg, Case

MEANS = "means and variances over an axis"


def _affine(op: str, shape: tuple[int, ...], width: int, dtypes: tuple[str, ...] = FLOATS, **attrs: Any) -> Case:
    inputs = {
        "data": Arg(shape, low=-2.0, high=2.0),
        "gamma": Arg((width,), low=0.5, high=1.5),
        "beta": Arg((width,)),
    }
    # The gradients of mean and std are not read.
    numeric = not attrs.get("output_mean_var")
    return Case(op, inputs, attrs, dtypes, rtol=1e-4, atol=1e-5, numeric=numeric, why=MEANS)


def _batch(op: str, shape: tuple[int, ...], *, is_train: bool = True, **attrs: Any) -> list[Case]:
    channels = (shape[1],)
    gamma = Arg(channels, low=0.5, high=1.5, dtype="float32")
    if attrs.get("fix_gamma", True):
        gamma = Arg(channels, values=[1.0] * shape[1], dtype="float32")
    inputs: dict[str, Any] = {
        "data": Arg(shape, low=-2.0, high=2.0),
        "gamma": gamma,
        "beta": Arg(channels, dtype="float32"),
        "moving_mean": Arg(channels, dtype="float32"),
        "moving_var": Arg(channels, low=0.5, high=1.5, dtype="float32"),
    }
    why = MEANS + "; the statistics of no elements are undefined"
    row = {"rtol": 1e-4, "atol": 1e-5, "is_train": is_train, "grad": is_train, "zero_size": False, "why": why}
    wide = {
        name: arg if name == "data" else Arg(arg.shape, low=arg.low, high=arg.high, dtype="float64", values=arg.values)
        for name, arg in inputs.items()
    }
    numeric = attrs.get("fix_gamma", True) is False and not attrs.get("output_mean_var")
    return [
        Case(op, inputs, attrs, ("float32", "float16"), **row),
        Case(
            op,
            wide,
            attrs,
            ("float64",),
            numeric=numeric,
            oracle=False,
            **{**row, "why": why + "; float32 only in MXNet"},
        ),
    ]


def _l2(shape: tuple[int, ...], **attrs: Any) -> Case:
    return Case("L2Normalization", {"data": shape}, attrs, rtol=1e-4, atol=1e-5, why=MEANS)


def _moments(shape: tuple[int, ...], axes: tuple[int, ...], **attrs: Any) -> Case:
    data = Arg(shape, low=-2.0, high=2.0)
    zero = attrs.pop("zero_size", True)
    return Case("moments", {"data": data}, {"axes": axes, **attrs}, rtol=1e-4, atol=1e-5, zero_size=zero, why=MEANS)


SYNC = "_contrib_SyncBatchNorm"

CASES = [
    _affine("LayerNorm", (3, 4, 5), 5),
    _affine("LayerNorm", (3, 4), 4, eps=0.1),
    _affine("LayerNorm", (3, 4, 5), 4, axis=1),
    _affine("LayerNorm", (3, 4, 5), 3, axis=0),
    _affine("LayerNorm", (2, 3, 4, 5), 4, axis=-2, output_mean_var=True),
    _affine("LayerNorm", (6,), 6),
    _affine("GroupNorm", (2, 6, 4), 3, num_groups=3),
    _affine("GroupNorm", (2, 4, 3, 5), 1, eps=0.1),
    _affine("GroupNorm", (3, 4, 5), 4, num_groups=4, output_mean_var=True),
    _affine("GroupNorm", (2, 4, 3, 2, 2), 2, num_groups=2),
    _affine("InstanceNorm", (2, 3, 8), 3),
    _affine("InstanceNorm", (2, 3, 4, 5), 3, eps=0.1),
    _affine("InstanceNorm", (1, 2, 3, 2, 4), 2),
    _l2((3, 4)),
    _l2((2, 3, 4, 5), eps=0.1),
    _l2((2, 3, 4, 5), mode="channel"),
    _l2((2, 3, 4), mode="channel", eps=0.01),
    _l2((2, 3, 4, 5), mode="spatial"),
    Case("LRN", {"data": Arg((2, 7, 3, 4), low=-2.0, high=2.0)}, {"nsize": 5}, rtol=1e-4, atol=1e-5, why=MEANS),
    Case(
        "LRN",
        {"data": Arg((2, 5, 3, 4), low=-2.0, high=2.0)},
        {"nsize": 3, "alpha": 0.5, "beta": 0.6, "knorm": 1.5},
        rtol=1e-4,
        atol=1e-5,
        why=MEANS,
    ),
    Case("LRN", {"data": (2, 3, 2, 2)}, {"nsize": 9, "alpha": 1.0}, rtol=1e-4, atol=1e-5, why=MEANS),
    Case("LRN", {"data": (2, 3, 2, 2)}, {"nsize": 1, "alpha": 1.0, "knorm": 1.0}, rtol=1e-4, atol=1e-5, why=MEANS),
    _moments((3, 4, 5), (1,)),
    _moments((3, 4, 5), (0, -1), keepdims=True),
    _moments((3, 4), (0, 1), zero_size=False),
    _moments((2, 3, 4, 5), (2, 3)),
    *(
        Case(
            "moments",
            {"data": Arg((5, 3), low, 4, kind="int")},
            {"axes": (0,)},
            dtypes,
            numeric=False,
            zero_size=False,
            why="quotients of integers are cut off",
        )
        for low, dtypes in ((-4, ("int32", "int64", "int8")), (0, ("uint8",)))
    ),
    *_batch("BatchNorm_v1", (3, 4, 5, 2)),
    *_batch("BatchNorm_v1", (3, 4), fix_gamma=False, eps=0.1),
    *_batch("BatchNorm_v1", (3, 4, 5, 2), fix_gamma=False, use_global_stats=True),
    *_batch("BatchNorm_v1", (3, 4, 5, 2), fix_gamma=False, output_mean_var=True, momentum=0.5),
    *_batch("BatchNorm_v1", (3, 4, 5, 2), is_train=False, output_mean_var=True),
    *_batch(SYNC, (3, 4, 5, 2), key="a"),
    *_batch(SYNC, (3, 4, 5), fix_gamma=False, eps=0.1, key="b", ndev=1),
    *_batch(SYNC, (3, 4, 5), fix_gamma=False, use_global_stats=True, key="c"),
    *_batch(SYNC, (3, 4, 5), fix_gamma=False, output_mean_var=True, momentum=0.5, key="d"),
    *_batch(SYNC, (3, 4, 5), is_train=False, fix_gamma=False, key="e"),
]
