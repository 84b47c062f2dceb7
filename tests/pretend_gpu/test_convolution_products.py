"""Convolutions as products of cuBLAS, on the pretend device: the CPU's values, when they are taken, their memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import opbox as mx
from opbox_ops import trust
from opbox_ops.backend import backend_for
from opbox_ops.cuda import cublas
from opbox_ops.cudnn import choice, forms, products, search
from opbox_ops.cudnn.algorithms import DATA, FORWARD, WEIGHT, ConvolutionPass, ConvolutionProblem, ProductForm
from opbox_ops.cudnn.choice import choice_of
from opbox_ops.cudnn.forms import usable_forms
from opbox_ops.selfcheck import convolutions
from tests.cases.case import Case
from tests.switches import switch_off

from .replays import replayed_and_eager
from .spy import watched
from .test_cudnn import ROWS, agree, forget, last


@pytest.fixture(autouse=True)
def anew(gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As in a new process with an empty folder of kernels."""
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    forget()
    yield
    forget()


@pytest.fixture(params=list(ProductForm), ids=lambda form: form.name)
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """This form runs what it can."""
    monkeypatch.setattr(forms, "is_recommended", lambda problem, form: form.number == request.param)
    monkeypatch.setattr(products, "is_recommended", forms.is_recommended)
    return request.param


def problem(
    direction: ConvolutionPass,
    data: tuple[int, ...] = (32, 64, 56, 56),
    filters: int = 256,
    kernel: int = 1,
    *,
    stride: int = 1,
    dtype: str = "float32",
    last: bool = False,
    groups: int = 1,
    most: int = 1 << 30,
    measured: bool = False,
) -> ConvolutionProblem:
    """A square kernel, padded so that a stride of 1 keeps the image's size."""
    pad = kernel // 2
    out = [(n + 2 * pad - kernel) // stride + 1 for n in data[2:]]
    shapes = (data, (filters, data[1] // groups, kernel, kernel), (data[0], filters, *out))
    window = ((stride,) * 2, (1, 1), (pad, pad))
    return ConvolutionProblem.of(direction, dtype, shapes, window, groups, last, measured, most)


def offered(*args: Any, **more: Any) -> set[ProductForm]:
    return {ProductForm(one.number) for one in usable_forms(problem(*args, **more))}


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-check compares products alone."""
    monkeypatch.setattr(convolutions, "usable", lambda handle, problem: usable_forms(problem))


def compared(dtype: str) -> dict[tuple[str, str], str]:
    """The self-check's answers: values against NumPy's, and the bits of a second run."""
    return convolutions.compare_algorithms(backend_for("gpu:0"), dtype, lambda what: None)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_each_product_has_numpys_values_and_the_same_bits_twice(dtype: str) -> None:
    answers = compared(dtype)
    assert len(answers) == 6
    assert set(answers.values()) == {""}


@pytest.mark.usefixtures("alone")
def test_columns_in_blocks_of_samples_have_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "MAX_WORKSPACE", 150_000)
    answers = compared("float32")
    assert answers
    assert set(answers.values()) == {""}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_of_the_operator_table_have_the_cpus_values(forced: ProductForm, dtype: str) -> None:
    counts = 0
    for case in ROWS[::2]:
        with watched() as watch:
            agree(case, dtype, "cudnn")
        counts += watch.calls["product"]
    assert counts


def test_rows_with_the_channels_last_have_the_cpus_values(forced: ProductForm) -> None:
    for case in [case for case in ROWS if len(case.attrs["kernel"]) == 2 and not case.attrs.get("target_shape")][::4]:
        agree(last(case), "float32", "cudnn")


def test_a_product_is_recorded_and_replayed(forced: ProductForm, monkeypatch: pytest.MonkeyPatch) -> None:
    def network() -> Any:
        x = mx.sym.Convolution(mx.sym.Variable("data"), num_filter=4, kernel=(1, 1), name="one")
        x = mx.sym.Convolution(x, num_filter=4, kernel=(3, 3), stride=(2, 2), pad=(1, 1), name="two")
        return mx.sym.MakeLoss(mx.sym.sum(x)), {"data": (2, 3, 6, 6)}

    replayed_and_eager(network, "write", monkeypatch)


# -- which run what ---------------------------------------------------------------------------------------------------


def test_what_products_are_offered_for() -> None:
    every = set(ProductForm)
    assert offered(WEIGHT) == every
    assert offered(WEIGHT, stride=2) == every
    assert offered(WEIGHT, (32, 128, 56, 56), 128, 3, stride=2) == every
    assert offered(WEIGHT, last=True) == {ProductForm.WHOLE}
    assert offered(FORWARD) == {ProductForm.BY_SAMPLE}
    assert offered(FORWARD, (32, 512, 7, 7)) == {ProductForm.BY_SAMPLE, ProductForm.WHOLE}
    assert offered(FORWARD, stride=2) == every
    assert offered(FORWARD, (32, 512, 14, 14), 512, 3, stride=2) == every
    assert offered(FORWARD, (32, 512, 14, 14), 512, 3, stride=2, last=True) == {ProductForm.WHOLE}
    assert offered(FORWARD, (1, 512, 7, 7)) == {ProductForm.BY_SAMPLE}
    assert offered(DATA, last=True) == {ProductForm.WHOLE}
    assert offered(DATA, (32, 128, 56, 56), 128, 3, stride=2) == {ProductForm.BY_SAMPLE, ProductForm.WHOLE}


def test_what_products_are_not_offered_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not offered(FORWARD, kernel=3)
    assert not offered(FORWARD, kernel=3, stride=2, dtype="float16")
    assert not offered(DATA, kernel=3), "cuDNN has faster ways without a stride"
    assert not offered(WEIGHT, kernel=3, dtype="float16"), "tensor cores are faster than columns are copied"
    assert not offered(WEIGHT, kernel=9)
    assert not offered(WEIGHT, groups=2)
    assert not offered(WEIGHT, most=0)
    assert offered(FORWARD, most=0), "it needs no workspace"
    switch_off(monkeypatch, "convolution-products")
    assert not offered(WEIGHT)


def test_where_tensor_cores_may_multiply_no_product_is_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_ALLOW_TF32", "1")
    chosen = choice_of(problem(WEIGHT))
    assert chosen is not None
    assert not chosen.best.is_product
    assert any(one.is_product for one in chosen.candidates)


def test_a_product_that_the_self_check_refuses_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "cuBLAS BackwardFilter product WHOLE"
    monkeypatch.setattr(trust, "is_trusted", lambda name, dtype: name != wrong)
    assert offered(WEIGHT) == {ProductForm.BY_SAMPLE}


@pytest.mark.parametrize("most", [1 << 18, 1 << 22, 1 << 30])
@pytest.mark.parametrize("direction", [FORWARD, DATA, WEIGHT], ids=lambda direction: direction.name)
def test_a_product_keeps_to_the_workspace(direction: ConvolutionPass, most: int) -> None:
    for stride, kernel in ((1, 1), (2, 1), (2, 3), (1, 3)):
        for form in usable_forms(problem(direction, (8, 32, 28, 28), 48, kernel, stride=stride, most=most)):
            assert form.workspace <= min(most, forms.MAX_WORKSPACE)


@pytest.mark.parametrize(
    ("wanted", "product"),
    [
        (problem(WEIGHT), ProductForm.BY_SAMPLE),
        (problem(WEIGHT, (32, 512, 7, 7)), ProductForm.WHOLE),
        (problem(WEIGHT, (32, 1024, 14, 14), 512), ProductForm.WHOLE),
        (problem(WEIGHT, (32, 128, 56, 56), 128, 3, stride=2), ProductForm.WHOLE),
        (problem(WEIGHT, last=True), ProductForm.WHOLE),
        (problem(DATA), ProductForm.BY_SAMPLE),
        (problem(DATA, (32, 256, 56, 56), 512, stride=2), ProductForm.BY_SAMPLE),
        (problem(DATA, (32, 128, 56, 56), 128, 3, stride=2), ProductForm.WHOLE),
        (problem(FORWARD), ProductForm.BY_SAMPLE),
        (problem(FORWARD, stride=2), None),
        (problem(WEIGHT, (32, 64, 56, 56), 64, 3), None),
        (problem(WEIGHT, (2, 8, 9, 9), 8), None),
        (problem(WEIGHT, dtype="float16"), None),
    ],
)
def test_which_product_runs_before_anything_was_measured(
    wanted: ConvolutionProblem, product: ProductForm | None
) -> None:
    chosen = choice_of(wanted)
    assert chosen is not None
    assert (chosen.best.number if chosen.best.is_product else None) == product


# -- measured ---------------------------------------------------------------------------------------------------------


def test_the_fastest_is_found_among_both_and_read_from_disk(gpu: Any) -> None:
    gpu.costs.update({("cudnnConvolutionBackwardFilter", number): 2.0 for number in range(8)})
    asked = problem(WEIGHT, (2, 8, 9, 9), 8, measured=True)
    chosen = choice_of(asked)
    assert chosen is not None
    assert not chosen.best.is_product
    before, of_others = gpu.state.used[0], set(cublas._apart)
    search.ask(chosen)
    assert search.settle(60)
    assert chosen.is_measured
    assert chosen.best.is_product
    assert set(cublas._apart) <= of_others, "the measurement's workspace is gone"
    assert gpu.state.used[0] <= before + 64
    forget()
    again = choice_of(asked)
    assert again is not None
    assert again is not chosen
    assert (again.is_measured, again.best) == (True, chosen.best)


def test_a_measured_product_beside_sessions_uses_none_of_their_workspaces() -> None:
    backend = backend_for("gpu:0").for_session()
    with backend.scope():
        handle = cublas._current(backend.xp)
        before = set(handle._workspaces)  # a session of another test may not have ended yet
        chosen = choice_of(problem(WEIGHT, (2, 8, 9, 9), 8, measured=True))
        assert chosen is not None
        search.ask(chosen)
    assert search.settle(60)
    assert chosen.is_measured
    assert set(handle._workspaces) <= {0, *before}
    backend.close()


def test_candidates_are_few() -> None:
    chosen = choice_of(problem(WEIGHT, (2, 8, 9, 9), 8, 3, measured=True))
    assert chosen is not None
    assert sum(not one.is_product for one in chosen.candidates) <= choice.CANDIDATES
    assert sum(one.is_product for one in chosen.candidates) == len(usable_forms(chosen.problem))


def test_one_filter_or_channel_has_the_cpus_values(forced: ProductForm) -> None:
    for filters, channels in ((1, 1), (1, 5), (5, 1)):
        attrs = {"kernel": (1, 1), "num_filter": filters, "no_bias": True}
        inputs = {"data": (3, channels, 5, 7), "weight": (filters, channels, 1, 1)}
        agree(Case("Convolution", inputs, attrs, ("float32",), grad=True), "float32", "cudnn")
