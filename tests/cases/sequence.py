"""SequenceLast, SequenceMask, SequenceReverse, CTCLoss, IdentityAttachKLSparseReg."""

from typing import Any

from .case import FLOATS, Arg, Case

EVERY = (*FLOATS, "int8", "uint8", "int32", "int64")


def _sequence(op: str, shape: tuple[int, ...], lengths: list[int] | None = None, **attrs: Any) -> Case:
    inputs: dict[str, Any] = {"data": shape}
    if lengths is not None:
        kind = attrs.pop("kind", "float32")
        inputs["sequence_length"] = Arg((len(lengths),), values=lengths, dtype=kind, grad=False)
        attrs["use_sequence_length"] = True
    # Without a time step there is no last one.
    zero = op != "SequenceLast" or attrs.get("axis") == 1
    dtypes = EVERY if lengths is None or kind == "float32" else FLOATS
    return Case(op, inputs, attrs, dtypes, zero_size=zero, assumed=("sequence_length",))


def _ctc(data: tuple[int, ...], label: list[list[int]], **attrs: Any) -> Case:
    kind = attrs.pop("kind", "float32")
    inputs: dict[str, Any] = {
        "data": Arg(data, low=-2.0, high=2.0),
        "label": Arg((len(label), len(label[0])), values=label, dtype=kind, grad=False),
    }
    for name in ("data_lengths", "label_lengths"):
        if name in attrs:
            inputs[name] = Arg((len(label),), values=attrs.pop(name), dtype=kind, grad=False)
            attrs[f"use_{name}"] = True
    oracle, why = attrs.pop("oracle", True), attrs.pop("why", "logarithms of sums over all alignments")
    return Case(
        "CTCLoss",
        inputs,
        attrs,
        FLOATS,
        rtol=1e-4,
        atol=1e-4,
        zero_size=False,
        oracle=oracle,
        assumed=("label", "data_lengths", "label_lengths"),
        why=why,
    )


def _sparse(shape: tuple[int, ...], **attrs: Any) -> list[Case]:
    row: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5, "zero_size": False, "numeric": False}
    return [
        Case(
            "IdentityAttachKLSparseReg",
            {"data": Arg(form, low=0.0, high=1.0), "moving_avg": Arg((shape[1],), low=0.25, high=0.75)},
            attrs,
            dtypes,
            oracle=dtypes == ("float32",),
            why="a regularizer; float32 and two dimensions only in MXNet",
            **row,
        )
        for form, dtypes in ((shape, ("float32",)), ((*shape, 2), ("float64", "float16")))
    ]


CASES = [
    _sequence("SequenceLast", (4, 3, 2)),
    _sequence("SequenceLast", (4, 3), axis=1),
    _sequence("SequenceLast", (4, 3, 2), [1, 4, 3]),
    _sequence("SequenceLast", (3, 4, 2, 2), [1, 4, 3], axis=1),
    _sequence("SequenceLast", (4, 3), [2, 4, 3], kind="int32"),
    _sequence("SequenceMask", (4, 3, 2)),
    _sequence("SequenceMask", (4, 3, 2), [0, 4, 3]),
    _sequence("SequenceMask", (4, 3), [1, 4, 3], value=-2.0, kind="int64"),
    _sequence("SequenceMask", (3, 4, 2, 2), [1, 2, 0], axis=1, value=3.0),
    _sequence("SequenceReverse", (4, 3, 2)),
    _sequence("SequenceReverse", (4, 3, 2), [1, 4, 3]),
    _sequence("SequenceReverse", (5, 2), [2, 5], axis=0, kind="int32"),
    _ctc((6, 2, 4), [[1, 2, 0], [3, 3, 2]]),
    _ctc((6, 3, 5), [[1, 1, 1], [4, 3, 4], [2, 0, 0]], kind="int32"),
    _ctc((7, 2, 4), [[0, 1, -1], [2, 2, 0]], blank_label="last"),
    _ctc((6, 2, 4), [[1, 2, 0], [3, 2, 1]], data_lengths=[4, 6]),
    _ctc((6, 2, 4), [[1, 2, 3], [3, 2, 1]], label_lengths=[2, 3]),
    _ctc((7, 2, 4), [[0, 2, 1], [1, 2, 1]], label_lengths=[2, 1], data_lengths=[5, 7], blank_label="last"),
    _ctc((3, 2, 4), [[1, 1, 1], [2, 1, 0]], oracle=False, why="no alignment: MXNet writes what is left over"),
    _ctc((3, 2, 3), [[0, 0], [0, 0]], oracle=False, why="empty labels: MXNet reads beyond them"),
    *_sparse((3, 4)),
    *_sparse((5, 2), sparseness_target=0.3, penalty=0.5, momentum=0.5),
]
