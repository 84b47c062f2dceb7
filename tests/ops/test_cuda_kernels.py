"""Kernels of our own: on the CPU's emulator, which checks every access, and where plans choose them on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops import registry
from opbox_ops.backend import Backend, backend_for
from opbox_ops.compute import PLAIN, ArraySpec, CallSpec, Mode, OpContext
from opbox_ops.cuda import convolution
from opbox_ops.cuda.bias import last_bias_gradient, last_parts
from opbox_ops.cuda.kernel import KERNELS, TYPES, KernelTemplate
from opbox_ops.cuda.reorder import REORDER
from opbox_ops.layout import CHANNELS_LAST, logical, physical_shape
from opbox_ops.rnn.layout import activations
from opbox_ops.rnn.operator import RNNOperatorParams, sizes_of
from opbox_ops.rtc import parse_signature
from opbox_ops.rtc.emulator import EmulatedModule
from opbox_service.executor import bind
from opbox_service.graph.json import load
from tests.cases import families
from tests.cases.case import Arg, Case
from tests.ops.harness import Run

FAMILIES = (
    "softmax",
    "loss",
    "normalization",
    "normalization_layers",
    "sequence",
    "convolution",
    "pooling",
    "rnn",
    "index",
    "update_many",
    "contrib",
    "sampling",
    "matrices",
    "image",
    "regions",
    "boxes",
    "multibox",
    "counting",
)
COVERED = {
    "softmax",
    "softmin",
    "log_softmax",
    "SoftmaxActivation",
    "SoftmaxOutput",
    "BatchNorm",
    "_contrib_BatchNormWithReLU",
    "BatchNorm_v1",
    "_contrib_SyncBatchNorm",
    "LayerNorm",
    "GroupNorm",
    "InstanceNorm",
    "L2Normalization",
    "LRN",
    "softmax_cross_entropy",
    "SVMOutput",
    "CTCLoss",
    "pick",
    "batch_take",
    "Convolution",
    "Pooling",
    "RNN",
    "sort",
    "argsort",
    "topk",
    "multi_sum_sq",
    "all_finite",
    "multi_all_finite",
    "lamb_update_phase2",
    "mp_lamb_update_phase2",
    "_multi_lamb_update",
    "_multi_mp_lamb_update",
    "_multi_adamw_update",
    "_multi_mp_adamw_update",
    "_contrib_quantize",
    "_contrib_dequantize",
    "ROIPooling",
    "_linalg_trsm",
    "_linalg_potrf",
    "_linalg_potri",
    "_linalg_inverse",
    "_linalg_det",
    "_linalg_slogdet",
    "_linalg_gelqf",
    "_linalg_syevd",
    "GridGenerator",
    "BilinearSampler",
    "SpatialTransformer",
    "Correlation",
    "_contrib_DeformableConvolution",
    "_contrib_ModulatedDeformableConvolution",
    "_image_resize",
    "_contrib_index_copy",
    "_np_cumsum",
    *(f"_image_random_{name}" for name in ("brightness", "contrast", "saturation", "hue")),
    "_contrib_ROIAlign",
    "_contrib_RROIAlign",
    "_contrib_box_nms",
    "_contrib_Proposal",
    "_contrib_MultiProposal",
    "_contrib_PSROIPooling",
    "_contrib_MultiBoxDetection",
    "_histogram",
    "_contrib_MultiBoxTarget",
    "_contrib_bipartite_matching",
    "_contrib_DeformablePSROIPooling",
}


class Emulated:
    """NumPy, with kernels that the emulator runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def RawKernel(self, source: str, name: str, options: Sequence[str]) -> Any:
        [kernel] = [kernel for kernel in KERNELS if kernel.name == name]
        double = "typedef double A;" in source
        element = next(c for c in TYPES.values() if f"typedef {c} T;" in source)
        parameters = kernel.parameters
        for name_in_c, name_of_rtc in {
            "A ": "double " if double else "float ",
            "T ": f"{element} ",
            "unsigned char": "uint8_t",
            "unsigned *": "int *",
            "signed char": "int8_t",
            "long long": "int64_t",
        }.items():
            parameters = parameters.replace(name_in_c, name_of_rtc)
        module = EmulatedModule(source, cache=self._folder)
        compiled = module.kernel(name, parse_signature(name, parameters))

        def launch(grid: Any, block: Any, arguments: Any, shared_mem: int = 0) -> None:
            compiled.launch(list(arguments), (*grid, 1, 1)[:3], (*block, 1, 1)[:3], shared_mem)

        return launch


def rows() -> list[Any]:
    """The rows of the operator table in single precision whose operators have kernels here; those that draw do so on
    a device."""
    cases = [case for family in FAMILIES for case in families()[family] if not case.random]
    return [pytest.param(c, id=f"{c.op}-{i}") for i, c in enumerate(cases) if c.op in COVERED and "float32" in c.dtypes]


def as_gpu(call: Any, layout: str = PLAIN) -> Any:
    """The kernel that a plan on a GPU would choose for a call, and its spec; `layout` is that of images."""
    spec = replace(call.spec(), device="gpu")
    if layout != PLAIN:
        positions = call.node.op.get_attr("FSpatialOperands")(call.node.params)
        ins, outs = (
            tuple([replace(one, layout=layout) if k in which else one for k, one in enumerate(specs)])
            for which, specs in zip(positions, (spec.inputs, spec.outputs), strict=True)
        )
        spec = replace(spec, inputs=ins, outputs=outs)
    return call.node.op.choose(call.node.params, spec), spec


@pytest.mark.compiler
@pytest.mark.parametrize("case", rows())
def test_a_kernel_has_the_references_values_and_stays_in_its_arrays(case: Case, folder: Path) -> None:
    compare_with_the_reference(case, folder)


@pytest.mark.compiler
@pytest.mark.parametrize("case", [row.values[0] for row in rows() if row.values[0].op == "Convolution"][::8])
def test_a_convolution_a_sample_at_a_time(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "GPU_COLUMN_BYTES", 1)
    compare_with_the_reference(case, folder)


LARGER = [
    Case("BilinearSampler", {"data": (2, 6, 9, 8), "grid": Arg((2, 2, 40, 45), low=-1.5, high=1.5)}),
    Case(
        "SpatialTransformer",
        {"data": (2, 5, 7, 9), "loc": (2, 6)},
        {"target_shape": (50, 40), "transform_type": "affine", "sampler_type": "bilinear"},
    ),
    *(
        Case(
            f"_contrib_{name}DeformableConvolution",
            {
                "data": (2, 6, 11, 12),
                "offset": Arg((2, 36, 11, 12), low=-4.0, high=4.0),
                **({"mask": Arg((2, 18, 11, 12), low=0.0, high=1.0)} if name else {}),
                "weight": (4, 3, 3, 3),
                "bias": (4,),
            },
            {"kernel": (3, 3), "pad": (1, 1), "num_filter": 4, "num_group": 2, "num_deformable_group": 2},
        )
        for name in ("", "Modulated")
    ),
    *(
        Case(f"_image_random_{name}", {"data": Arg((40, 70, 3), 0, 255)}, {"min_factor": 0.5, "max_factor": 0.5})
        for name in ("contrast", "hue")
    ),
    *(
        Case("_image_resize", {"data": Arg((2, 40, 30, 3), 0, 255)}, {"size": 19, "interp": interp}, grad=False)
        for interp in range(5)
    ),
]
"""Of more than a block, and positions of more than one box, in single precision."""


@pytest.mark.compiler
@pytest.mark.parametrize("case", LARGER, ids=[f"{case.op}-{k}" for k, case in enumerate(LARGER)])
def test_a_kernel_of_many_blocks_stays_in_its_arrays(case: Case, folder: Path) -> None:
    compare_with_the_reference(replace(case, rtol=1e-4, atol=1e-3), folder)


def with_channels_last() -> list[Any]:
    """The rows whose images, with positions and their channels second, may lie with them last."""
    taken = []
    for row in rows():
        case = row.values[0]
        op, data = registry.get(case.op), case.inputs.get("data")
        if case.op in ("BatchNorm", "Pooling") and op.get_attr("FSpatialOperands")(op.parse(case.attrs)) is not None:
            taken += [row] if len(getattr(data, "shape", data)) >= 3 else []
    return taken


@pytest.mark.compiler
@pytest.mark.parametrize("case", with_channels_last())
def test_a_kernel_of_channels_last_has_them_too(case: Case, folder: Path) -> None:
    compare_with_the_reference(case, folder, CHANNELS_LAST)


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 33, 7, 9), (3, 70, 65), (2, 1, 40)])
def test_a_reorder_moves_every_element(shape: tuple[int, ...], dtype: str, folder: Path) -> None:
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    specs = [ArraySpec(shape, values.dtype, layout) for layout in (PLAIN, CHANNELS_LAST)]
    for source, target in (specs, specs[::-1]):
        context = OpContext(Emulated(folder), None, None, backend_for("cpu"))
        context.call = CallSpec("gpu", (source,), (target,))
        kernel = REORDER.choose(None, context.call)
        assert kernel is not None
        read, written = in_layout(values, source), in_layout(np.zeros_like(values), target)
        kernel.bind(None, context, [read], [written])()
        np.testing.assert_array_equal(written, values)


@pytest.mark.compiler
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (8, 10, 9, 40), (1, 7, 300)])
def test_the_gradient_of_a_bias_of_channels_last(shape: tuple[int, ...], folder: Path) -> None:
    gout = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    temp = last_parts(ArraySpec(shape, gout.dtype), shape[-1])
    parts, gbias = np.full(temp.shape, 7, temp.dtype), np.full(shape[-1], 7, np.float32)
    context = OpContext(Emulated(folder), None, None, backend_for("cpu"))
    last_bias_gradient(context, gout, parts, gbias)()
    total = gout.sum(tuple(range(len(shape) - 1)), dtype=np.float64)
    np.testing.assert_allclose(gbias, total, rtol=1e-5, atol=1e-5)


def in_layout(array: Any, spec: ArraySpec) -> Any:
    """A copy of the array that lies as `spec` says."""
    physical = logical(np.empty(physical_shape(spec), spec.dtype), spec.layout)
    physical[...] = array
    return physical


def reserve_in_rows(p: RNNOperatorParams, data: tuple[int, ...], reserve: Any) -> Any:
    """What the CPU's forward of RNN leaves for backward, as a GPU's leaves it: with each sample's gates in a row."""
    sizes = sizes_of(p, data)
    rows = np.zeros_like(reserve)
    for source, target in zip(activations(sizes, reserve, columns=True), activations(sizes, rows), strict=True):
        target.states[...] = source.states
        if source.mask is not None and target.mask is not None:
            target.mask[...] = source.mask
        columns = [*source.gates, *(source.extra or [])]
        for gates, array in zip([*target.gates, *(target.extra or [])], columns, strict=True):
            gates[...] = array.swapaxes(1, 2)
    return rows


def forward_names(call: Any) -> set[str]:
    """The operator's name, of a gradient's what its forward operator may be called."""
    name = call.node.op.name.removeprefix("_backward")
    short = name.removeprefix("_")
    return {name, short, f"_contrib_{short.removeprefix('contrib_')}"}


def emulate(
    kernel: Any, node: Any, spec: Any, inputs: list[Any], outputs: list[Any], folder: Path, *, is_train: bool = True
) -> None:
    """Run a call's kernels on the emulator."""
    backend = backend_for("cpu")
    context = OpContext(Emulated(folder), None, backend.random(0), backend, Mode(is_train))
    context.temp = tuple(np.full(t.shape, 7, t.dtype) for t in kernel.temps)
    context.call = spec
    with np.errstate(all="ignore"):
        kernel.bind(node.params, context, inputs, outputs)()


def compare_with_the_reference(case: Case, folder: Path, layout: str = PLAIN, dtype: str = "float32") -> None:
    """The values of the kernels that a row's operator and its gradient have, on the emulator."""
    backend = backend_for("cpu")
    run = Run(case, dtype, backend)
    run.forward()
    if case.grad and run.wanted():
        run.backward()
    own = 0
    for call in run.calls:
        kernel, spec = as_gpu(call, layout)
        if kernel.level != "generated" or not forward_names(call) & COVERED:
            continue
        own += 1
        inputs, outputs, wanted = call.fresh(), call.empty(), list(call.outputs)
        if layout != PLAIN:
            inputs = [in_layout(array, one) for array, one in zip(inputs, spec.inputs, strict=True)]
            outputs = [in_layout(array, one) for array, one in zip(outputs, spec.outputs, strict=True)]
        if call.node.op.name == "RNN":
            wanted[-1] = reserve_in_rows(call.node.params, inputs[0].shape, wanted[-1])
        elif call.node.op.name == "_backward_RNN":
            data = inputs[3 if call.node.params.mode == "lstm" else 2]  # behind the heads' gradients
            inputs[-1] = reserve_in_rows(call.node.params, data.shape, inputs[-1])
        emulate(kernel, call.node, spec, inputs, outputs, folder, is_train=case.is_train)
        for expected, result in zip(wanted, outputs, strict=True):
            np.testing.assert_allclose(result, expected, rtol=max(case.rtol or 0, 1e-5), atol=max(case.atol or 0, 1e-6))
    # The reference casts, and has the channels last.
    refused = case.attrs.keys() & {"dtype", "projection_size"} or str(case.attrs.get("layout")).endswith("C")
    assert own or refused, "no kernel accepts the row"


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_kernel_moves_no_less_than_it_must(kernel: KernelTemplate) -> None:
    what, moved = kernel.example
    assert what
    assert moved().bytes >= moved().least > 0


def test_operators_have_kernels_of_their_own() -> None:
    own = {name for name in registry.names() if "generated" in registry.get(name).json()["levels"].get("gpu", ())}
    # Of a loss whose output is its input, the gradient alone has one.
    assert own | {name.removeprefix("_backward_") for name in own} >= COVERED


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("dtype", TYPES)
def test_a_plan_on_a_gpu_chooses_them(dtype: str, backend: Backend) -> None:
    x = np.random.default_rng(0).normal(size=(5, 70)).astype(dtype)
    data = backend.put(x)
    executor = bind(
        load(mx.sym.softmax(mx.sym.Variable("data")).tojson()),
        args={"data": data},
        backend=backend,
        random=backend.random(0),
    )
    [out] = executor.forward(is_train=False) or executor.outputs
    expected = np.exp(x.astype("d")) / np.exp(x.astype("d")).sum(axis=1, keepdims=True)
    # A rounding to the type, and some of the type that it is computed in.
    np.testing.assert_allclose(backend.get(out), expected, rtol=4 * np.finfo(dtype).eps)
