"""The words on a drawing: what an operator is called there, its parameters in short, and the family that colours it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opbox_protocol.mxnet import attribute_value

__all__ = ["details", "dims_text", "family", "title"]

Attributes = Mapping[str, str]

FAMILIES = {
    "layer": "Convolution Deconvolution FullyConnected Embedding RNN dot batch_dot _linalg_gemm _linalg_gemm2 "
    "Correlation _contrib_DeformableConvolution _contrib_ModulatedDeformableConvolution",
    "norm": "BatchNorm InstanceNorm LayerNorm GroupNorm L2Normalization LRN _contrib_BatchNormWithReLU Dropout",
    "activation": "Activation LeakyReLU SoftmaxActivation softmax log_softmax softmin relu sigmoid tanh erf softsign "
    "hard_sigmoid log_sigmoid mish clip",
    "pool": "Pooling UpSampling ROIPooling _contrib_ROIAlign _contrib_AdaptiveAvgPooling2D _contrib_BilinearResize2D "
    "BilinearSampler SpatialTransformer GridGenerator Crop max mean sum min prod argmax argmin topk",
    "shape": "Concat Flatten Reshape reshape_like transpose SwapAxis expand_dims squeeze slice slice_axis slice_like "
    "SliceChannel _split_v2 stack tile repeat reverse broadcast_to broadcast_like broadcast_axis Pad Cast _copy "
    "BlockGrad take pick gather_nd one_hot SequenceMask SequenceLast SequenceReverse depth_to_space space_to_depth "
    "_zeros _ones _full",
    "loss": "SoftmaxOutput LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput SVMOutput MakeLoss "
    "make_loss softmax_cross_entropy CTCLoss smooth_l1 IdentityAttachKLSparseReg",
    "own": "Custom _NumpyOp _NDArrayOp _foreach _while_loop _cond",
}
FAMILY = {name: family for family, names in FAMILIES.items() for name in names.split()}

SIGNS = {
    "elemwise_add": "+",
    "broadcast_add": "+",
    "_plus_scalar": "+",
    "add_n": "sum of inputs",
    "elemwise_sub": "−",
    "broadcast_sub": "−",
    "_minus_scalar": "−",
    "elemwise_mul": "×",
    "broadcast_mul": "×",
    "_mul_scalar": "×",
    "elemwise_div": "÷",
    "broadcast_div": "÷",
    "_div_scalar": "÷",
    "_power_scalar": "to the power",
    "_rminus_scalar": "from",
    "_rdiv_scalar": "divides",
}


def family(op: str | None) -> str:
    """An operator's family, which has a colour: "layer", "norm", …; "input" for a variable, "math" for the rest."""
    return "input" if op is None else FAMILY.get(op, "math")


def dims_text(dims: object) -> str:
    """Sizes with a cross between them: (3, 3) and 3×3."""
    return "×".join(str(d) for d in dims) if isinstance(dims, list | tuple) else str(dims)


def title(op: str, attrs: Attributes) -> str:
    """Return the title of an operator on a drawing."""
    if op in ("Activation", "LeakyReLU") and "act_type" in attrs:
        return attrs["act_type"]
    if op in ("Custom", "_NumpyOp", "_NDArrayOp"):
        return attrs.get("op_type", op)
    return SIGNS.get(op, op.removeprefix("_contrib_").removeprefix("_linalg_").lstrip("_"))


def details(op: str, attrs: Attributes, required: tuple[str, ...] = ()) -> str:
    """Its parameters in short.

    Args:
        op, attrs: the operator and its parameters as strings.
        required: the parameters that it must have: shown of operators that have no row of their own here.
    """
    rule = DETAILS.get(op)
    if rule is not None:
        return rule(attrs)
    if "scalar" in attrs:
        return f"{float(attrs['scalar']):g}"
    return ", ".join(f"{name}={attrs[name]}" for name in required if name in attrs)[:32]


def _window(attrs: Attributes) -> str:
    """A kernel with its stride: 3×3/2."""
    kernel, stride = (attribute_value(attrs.get(key, "()")) for key in ("kernel", "stride"))
    text = dims_text(kernel) if kernel else ""
    if isinstance(stride, tuple) and any(s != 1 for s in stride):
        text += f"/{stride[0] if len(set(stride)) == 1 else dims_text(stride)}"
    return text


def _true(attrs: Attributes, key: str) -> bool:
    return attrs.get(key, "False").lower() in ("true", "1")


def _convolution(attrs: Attributes) -> str:
    parts = [_window(attrs), attrs.get("num_filter", "")]
    if attrs.get("num_group", "1") != "1":
        parts.append(f"{attrs['num_group']} groups")
    dilate = attribute_value(attrs.get("dilate", "()"))
    if isinstance(dilate, tuple) and any(d != 1 for d in dilate):
        parts.append(f"dilated {dims_text(dilate)}")
    return ", ".join(parts)


def _pooling(attrs: Attributes) -> str:
    kind = attrs.get("pool_type", "max")
    return f"global {kind}" if _true(attrs, "global_pool") else f"{kind} {_window(attrs)}"


DETAILS: Mapping[str, Callable[[Attributes], str]] = {
    "Convolution": _convolution,
    "Deconvolution": _convolution,
    "Pooling": _pooling,
    "FullyConnected": lambda a: a.get("num_hidden", ""),
    "Activation": lambda a: "",
    "LeakyReLU": lambda a: a.get("slope", "0.25") if a.get("act_type", "leaky") in ("leaky", "elu") else "",
    "Dropout": lambda a: a.get("p", "0.5"),
    "Embedding": lambda a: f"{a.get('input_dim', '?')} → {a.get('output_dim', '?')}",
    "RNN": lambda a: f"{a.get('mode', '')}, {a.get('num_layers', '1')}×{a.get('state_size', '?')}",
    "Concat": lambda a: f"axis {a.get('dim', '1')}",
    "stack": lambda a: f"axis {a.get('axis', '0')}",
    "SliceChannel": lambda a: f"{a.get('num_outputs', '?')}, axis {a.get('axis', '1')}",
    "Reshape": lambda a: dims_text(attribute_value(a.get("shape", "()"))),
    "transpose": lambda a: dims_text(attribute_value(a.get("axes", "()"))),
    "Cast": lambda a: a.get("dtype", ""),
    "UpSampling": lambda a: f"{a.get('scale', '?')}×",
    "Custom": lambda a: "",
    "_foreach": lambda a: "",
    "_while_loop": lambda a: f"at most {a.get('max_iterations', '?')} steps",
    "_cond": lambda a: "",
    "add_n": lambda a: "",
}
