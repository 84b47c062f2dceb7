"""Values and shapes that nobody means, over HTTP: the right answer, or one sentence; never a fault of the server."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.contract.live import Got, Live, symbol, var
from tests.contract.test_bad_input import post, refused

NAN, INF = float("nan"), float("inf")


def run(server: Live, op: str, attrs: dict[str, Any], *arrays: Any) -> Got:
    """Forward of one operator."""
    inputs = {f"in{i}": np.asarray(array) for i, array in enumerate(arrays)}
    texts = {key: str(value) for key, value in attrs.items()}
    graph = symbol(*map(var, inputs), (op, "y", texts, list(range(len(inputs)))))
    return server.call("POST", "/v1/forward", {"graph": graph}, inputs)


def first(answer: Got) -> np.ndarray:
    assert answer.status == 200, answer.header
    return next(iter(answer.tensors.values()))


F32 = np.float32
SCALAR = np.array(2, F32)
DATA = np.ones((2, 3), F32)
SHAPE, BAD = (422, "ShapeError"), (400, "BadRequestError")
LIMIT = (413, "LimitError")
IMAGE, ROI = np.ones((1, 1, 4, 4), F32), np.array([[0, 0, 0, 3, 3, 0]], F32)
TYPE, PARAM = (422, "DTypeError"), (400, "ParamError")

REFUSED: list[tuple[str, dict[str, Any], list[Any], tuple[int, str]]] = [
    # indices without dimensions
    ("scatter_nd", {"shape": (2, 2)}, [DATA, np.array(0, F32)], SHAPE),
    ("gather_nd", {}, [DATA, np.array(0, F32)], SHAPE),
    ("_scatter_set_nd", {"shape": (2, 3)}, [DATA, DATA, np.array(0, F32)], SHAPE),
    # draws of which there cannot be so many, which an output's shape would have made up for
    ("_sample_multinomial", {"shape": -4000}, [np.full((2, 4), 0.25, F32)], PARAM),
    ("_sample_uniform", {"shape": (-2,)}, [np.zeros(2, F32), np.ones(2, F32)], PARAM),
    # a mask of more than there is, and of a number
    ("topk", {"ret_typ": "mask"}, [SCALAR], SHAPE),
    ("topk", {"ret_typ": "mask", "k": 4}, [DATA], SHAPE),
    # anchors of no size
    *(
        (
            op,
            {"ratios": (1, ratio), "scales": (8,)},
            [IMAGE.repeat(4, 1), IMAGE.repeat(8, 1), np.ones((1, 3), F32)],
            PARAM,
        )
        for op in ("_contrib_Proposal", "_contrib_MultiProposal")
        for ratio in (0, -1, NAN, INF, 1e-320)
    ),
    # steps of training on numbers that no gradient has
    *(
        (op, attrs, [np.ones((2, 1), dtype)] * count, TYPE)
        for dtype in (np.int32, np.bool_)
        for op, attrs, count in (
            ("lamb_update_phase1", {"t": 1, "wd": 0}, 4),
            ("_contrib_group_adagrad_update", {"lr": 0.1}, 3),
            ("multi_lars", {"eta": 0.1, "eps": 0.1}, 4),
            ("multi_sgd_update", {"lrs": (0.1,), "wds": (0,), "num_weights": 1}, 2),
            ("multi_sgd_mom_update", {"lrs": (0.1,), "wds": (0,), "num_weights": 1}, 3),
            ("_multi_lamb_update", {"learning_rates": (0.1,), "wds": (0,), "num_tensors": 1, "step_count": (1,)}, 4),
        )
    ),
    # parameters that no distribution has
    *(
        (f"_sample_{name}", {"shape": 3}, [np.array([value], F32) for value in values], BAD)
        for name, *rows in (
            ("exponential", (-1,)),
            ("gamma", (-1, 1)),
            ("poisson", (-1,), (NAN,), (1e30,)),
            ("negative_binomial", (-1, 0.5), (NAN, 0.5), (3, NAN), (3, 2), (1e30, 1e-30)),
            ("generalized_negative_binomial", (-1, 1), (NAN, 1), (1, NAN), (1e30, 1)),
        )
        for values in rows
    ),
    *(
        (f"_random_{name}", {"shape": (3,), **attrs}, [], PARAM)
        for name, attrs in (
            ("exponential", {"lam": -1}),
            ("exponential", {"lam": "nan"}),
            ("gamma", {"alpha": -1}),
            ("gamma", {"beta": "nan"}),
            ("poisson", {"lam": -1}),
            ("poisson", {"lam": 1e30}),
            ("negative_binomial", {"k": -1}),
            ("negative_binomial", {"p": "nan"}),
            ("normal", {"scale": -1}),
            ("uniform", {"low": 2, "high": 1}),
            ("uniform", {"low": "nan"}),
            ("randint", {"low": 5, "high": 5}),
            ("randint", {"low": 0, "high": 10**30}),
        )
    ),
    # integers and booleans where real numbers are needed
    *(
        (op, attrs, [np.ones((2, 3), dtype)], TYPE)
        for op, attrs in (
            ("softmax", {}),
            ("log_softmax", {}),
            ("softmin", {}),
            ("Activation", {"act_type": "tanh"}),
            ("LeakyReLU", {}),
            ("Dropout", {}),
        )
        for dtype in ("bool", "int32", "uint8")
    ),
    # more than NumPy has
    ("_zeros", {"shape": (2**40, 2**40)}, [], LIMIT),
    ("tile", {"reps": (2**31, 2**31, 2**31)}, [DATA], LIMIT),
    ("tile", {"reps": (1,) * 33}, [DATA], SHAPE),
    ("_zeros", {"shape": (10**30,)}, [], PARAM),
    ("broadcast_to", {"shape": (2**40, 2**40, 2, 3)}, [np.ones((1, 1, 2, 3), F32)], LIMIT),
    ("Reshape", {"shape": (2**70, -1)}, [DATA], PARAM),
    ("Reshape", {"shape": (2**62, -1)}, [DATA], SHAPE),
    ("Concat", {"num_args": 10**9}, [DATA], PARAM),
    ("SliceChannel", {"num_outputs": 10**9}, [DATA], PARAM),
    ("_split_v2", {"sections": 10**9}, [DATA], PARAM),
    ("multi_sum_sq", {"num_arrays": 10**9}, [DATA], PARAM),
    # numbers that are none
    ("clip", {"a_min": 0, "a_max": "nan"}, [np.ones((2,), np.int32)], PARAM),
    ("diag", {"k": 10**30}, [DATA], PARAM),
    ("diag", {"k": 1 << 40}, [DATA], SHAPE),
    ("_contrib_RROIAlign", {"pooled_size": (2, 2), "spatial_scale": 1, "sampling_ratio": 2**62}, [IMAGE, ROI], LIMIT),
    ("_contrib_ROIAlign", {"pooled_size": (2, 2), "spatial_scale": 1e6}, [IMAGE, ROI[:, :5]], LIMIT),
    (
        "_contrib_DeformablePSROIPooling",
        {
            "spatial_scale": 1,
            "output_dim": 1,
            "group_size": 1,
            "pooled_size": 2,
            "sample_per_part": 10**9,
            "no_trans": 1,
        },
        [IMAGE, ROI[:, :5]],
        LIMIT,
    ),
    ("LogisticRegressionOutput", {}, [np.ones((2, 2), bool)] * 2, TYPE),
    ("softmax_cross_entropy", {}, [np.ones((2, 3), bool), np.ones((2,), bool)], TYPE),
    ("SVMOutput", {}, [SCALAR, SCALAR], SHAPE),
    ("fill_element_0index", {}, [np.ones((2, 0), F32), np.ones(2, F32), np.ones(2, F32)], SHAPE),
    ("_image_resize", {"size": 1, "keep_ratio": True}, [np.ones((0, 5, 3), np.uint8)], SHAPE),
    ("take", {}, [np.ones((0, 2), F32), np.zeros((1,), F32)], SHAPE),
]


@pytest.mark.parametrize(
    ("op", "attrs", "arrays", "error"), REFUSED, ids=lambda value: str(value).encode("ascii", "replace").decode()[:60]
)
def test_refused_in_a_sentence(
    server: Live, op: str, attrs: dict[str, Any], arrays: list[Any], error: tuple[int, str]
) -> None:
    refused(run(server, op, attrs, *arrays), *error)


TAKEN: list[tuple[str, dict[str, Any], list[Any], Any]] = [
    ("mean", {}, [SCALAR], [2.0]),
    ("norm", {}, [SCALAR], [2.0]),
    ("norm", {"ord": 1}, [np.array(-3, F32)], [3.0]),
    ("sum", {}, [SCALAR], [2.0]),
    ("max", {}, [SCALAR], [2.0]),
    ("_plus_scalar", {"scalar": 1e30, "is_int": False}, [np.ones((2,), np.int32)], np.array([1e30, 1e30])),
    ("_greater_scalar", {"scalar": 10**25}, [np.ones((2,), np.int64)], [0, 0]),
    ("_lesser_scalar", {"scalar": 10**25}, [np.ones((2,), np.int64)], [1, 1]),
    ("_maximum_scalar", {"scalar": 1e300}, [np.ones((2,), np.float16)], [INF, INF]),
    ("_logical_and_scalar", {"scalar": 10**25}, [np.array([0, 1], np.int8)], [0, 1]),
    ("_rdiv_scalar", {"scalar": 1e30}, [np.ones((2,), np.float16)], [INF, INF]),
    ("one_hot", {"depth": 2, "off_value": "nan", "dtype": "int32"}, [np.array([1], F32)], [[0, 1]]),
    ("_slice_assign_scalar", {"begin": 0, "end": 1, "scalar": 2**32 + 5}, [np.zeros(2, np.int32)], [5, 0]),
    ("where", {}, [np.array([True, False]), np.ones((2, 2), F32), np.zeros((2, 2), F32)], [[1, 1], [0, 0]]),
    # NumPy's generators take these; what they draw is no number where the parameter is none
    ("_sample_normal", {}, [np.array([0], F32), np.array([NAN], F32)], [NAN]),
    ("_sample_uniform", {}, [np.array([NAN], F32), np.array([1], F32)], [NAN]),
    ("log_softmax", {"dtype": "float32"}, [np.zeros((1, 2), np.int64)], [[-np.log(2), -np.log(2)]]),
    (
        "SequenceMask",
        {"use_sequence_length": True, "value": -2},
        [np.ones((2, 2), np.uint8), np.array([1, 2], np.uint8)],
        [[1, 1], [254, 1]],
    ),
    ("argsort", {}, [np.array([2**64 - 1, 0, 2**63], np.uint64)], [1, 2, 0]),
    ("moments", {"axes": (0,)}, [np.ones((0, 1), np.int32)], np.zeros(1)),
    (
        "ROIPooling",
        {"pooled_size": (2, 2), "spatial_scale": 1},
        [IMAGE, np.array([[0, 0, 0, INF, INF], [0, NAN, 0, 3, 3]], F32)],
        np.array([[[[1, 0], [0, 0]]], [[[0, 0], [0, 0]]]]),
    ),
    ("_contrib_arange_like", {"start": 3, "repeat": 2**62}, [DATA], np.full((2, 3), 3)),
    ("_contrib_arange_like", {"repeat": 2**62}, [np.ones((0, 2), F32)], np.ones((0, 2))),
    ("tile", {"reps": 2**62}, [np.ones((2, 0), F32)], np.ones((2, 0))),
    ("_contrib_arange_like", {"step": 1e30}, [np.zeros((1,), np.int64)], [0]),
    ("softmax", {}, [np.array([[NAN, 1], [0, 0]], F32)], [[NAN, NAN], [0.5, 0.5]]),
    # what bias correction divides by is 0, and is too large
    ("lamb_update_phase1", {"t": 1, "wd": 0.0, "beta2": 1.0}, [*[np.ones(2, F32)] * 3, np.full(2, 4, F32)], [0, 0]),
    ("lamb_update_phase1", {"t": 9, "wd": 0.0, "beta1": 1e200}, [np.ones(2, F32)] * 4, [NAN, NAN]),
]


@pytest.mark.parametrize(("op", "attrs", "arrays", "expected"), TAKEN, ids=lambda value: str(value)[:60])
def test_taken(server: Live, op: str, attrs: dict[str, Any], arrays: list[Any], expected: Any) -> None:
    np.testing.assert_allclose(first(run(server, op, attrs, *arrays)), expected, rtol=1e-6)


@pytest.mark.parametrize("value", ["\\ud800", "a\\udfffb"])
def test_halves_of_characters(server: Live, value: str) -> None:
    """JSON can write a surrogate without its other half; no UTF-8 text can."""
    for graph in (
        symbol(var("x"), ("_plus_scalar", "y", {"scalar": "?"}, [0])),
        symbol(var("x"), ("Activation", "y", {"act_type": "?"}, [0])),
        symbol(var("x"), ("?", "y", {}, [0])),
        symbol(var("?"), ("relu", "y", {}, [0])),
    ):
        body = json.dumps({"graph": graph, "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]})
        answer = post(server, body.replace("?", value).encode())
        assert 400 <= answer.status < 500, answer.header
        assert "\n" not in answer.error


def test_the_gradient_of_a_loss_that_is_a_number(server: Live) -> None:
    """Its batch is one."""
    graph = symbol(var("x"), ("MakeLoss", "y", {"normalization": "batch", "grad_scale": "3"}, [0]))
    tensors = {"x": np.array(2, F32), "head_grad:y_output": np.array(1, F32)}
    answer = server.call("POST", "/v1/backward", {"graph": graph}, tensors)
    assert answer.status == 200, answer.header
    assert answer.tensors["grad:x"] == 3


@pytest.mark.parametrize("part", [{"at": 0}, {"begin": 0, "end": 1}])
def test_row_views_of_arrays_without_dimensions(server: Live, part: dict[str, int]) -> None:
    session = server.session()
    put = {"do": "put", "id": 1, "tensor": "x"}
    refused(session.run(put, {"do": "view", "id": 2, "of": 1, **part}, x=np.float32(3)), 422, "ShapeError", "expected")
    session.delete()
