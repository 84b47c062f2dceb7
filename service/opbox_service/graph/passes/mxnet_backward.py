"""What MXNet 1.9.1's backward nodes read, by operator: recorded from its `debug_str` over the operator table.

An operator's gradient is one backward node there. Its inputs are written as `g0` (the gradient of output 0), `i1` (the
operator's input 1) and `o0` (its output 0); `g*` and `i*` are all of them, and a list of nothing is written as "".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["LEGACY", "WITHOUT_CONDITION", "backward_inputs", "input_labels"]

_DEFAULT = "g0 i*"
"""For operators that the table lacks."""
_SOFTMAX = frozenset(["log_softmax", "softmax", "softmin"])
"""They read their inputs only with another type for the output, or with lengths."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BY_INPUTS = {
    "g0": (
        "Cast Crop Flatten Pad Reshape SwapAxis UpSampling _contrib_AdaptiveAvgPooling2D _contrib_BilinearResize2D "
        "_contrib_box_iou _contrib_div_sqrt_dim _contrib_gradientmultiplier _copy _div_scalar "
        "_image_adjust_lighting _image_crop _image_random_brightness _image_random_color_jitter "
        "_image_random_contrast _image_random_flip_left_right _image_random_flip_top_bottom _image_random_hue "
        "_image_random_lighting _image_random_saturation _linalg_extractdiag _linalg_extracttrian _linalg_makediag "
        "_linalg_maketrian _minus_scalar _mul_scalar _np_cumsum _np_reshape _np_squeeze _np_sum _npi_concatenate "
        "_npi_mean _npi_true_divide_scalar _npx_reshape _plus_scalar _rminus_scalar _scatter_minus_scalar "
        "_scatter_plus_scalar amp_cast broadcast_add broadcast_axis broadcast_like broadcast_sub broadcast_to "
        "col2im depth_to_space diag elemwise_sub expand_dims im2col mean negative repeat reshape_like reverse slice "
        "slice_axis slice_like space_to_depth squeeze stack sum tile transpose"
    ),
    "g0 i0": (
        "Embedding _contrib_interleaved_matmul_selfatt_qk _contrib_quadratic _hypot_scalar _image_normalize "
        "_linalg_sumlogdiag _linalg_syrk _maximum_scalar _minimum_scalar _mod_scalar _npi_rtrue_divide_scalar "
        "_power_scalar _rdiv_scalar _rmod_scalar abs arccos arccosh arcsin arcsinh arctan arctanh clip cos cosh "
        "degrees erf expm1 gamma gammaln hard_sigmoid log log10 log1p log2 radians rcbrt reciprocal rsqrt sign sin "
        "sinh smooth_l1 softsign square where"
    ),
    "g0 i0 i1": (
        "Convolution_v1 FullyConnected IdentityAttachKLSparseReg _contrib_interleaved_matmul_encdec_qk "
        "_contrib_interleaved_matmul_encdec_valatt _contrib_interleaved_matmul_selfatt_valatt _hypot _linalg_gemm2 "
        "_linalg_trmm _maximum _minimum _mod _np_dot _npi_add _npi_mod _npi_multiply _npi_power _npi_subtract "
        "_npi_true_divide _power _scatter_elemwise_div broadcast_div broadcast_hypot broadcast_maximum "
        "broadcast_minimum broadcast_mod broadcast_mul broadcast_power dot elemwise_div elemwise_mul "
        "softmax_cross_entropy"
    ),
    "g0 i0 o0": (
        "Pooling_v1 _contrib_MultiBoxPrior _linalg_potri _np_max _np_min _np_prod max min nanprod nansum norm prod"
    ),
    "g0 o0": (
        "Activation:relu SoftmaxActivation _linalg_inverse _linalg_potrf _rpower_scalar cbrt erfinv exp relu sigmoid "
        "sqrt tan tanh"
    ),
    "g0 i1": (
        "SequenceLast SequenceMask SequenceReverse _contrib_PSROIPooling _contrib_ROIAlign gather_nd pick "
        "scatter_nd take"
    ),
    "g0 i0 i1 i2 o0": (
        "_contrib_MultiBoxDetection _random_pdf_gamma _random_pdf_generalized_negative_binomial "
        "_random_pdf_negative_binomial _random_pdf_normal _random_pdf_uniform"
    ),
    "": "MakeLoss _contrib_MultiBoxTarget _contrib_MultiProposal _contrib_Proposal",
    "g* i*": "Concat Convolution Deconvolution _rnn_param_concat",
    "g0 g1 o0 o1": "CTCLoss _contrib_box_nms _linalg_gelqf _linalg_syevd",
    "g0 i0 i1 o0": "_linalg_trsm _random_pdf_dirichlet _random_pdf_exponential _random_pdf_poisson",
    "i1 o0": "LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput SVMOutput",
    "g0 o0 o1": "L2Normalization sort topk",
    "g*": "SliceChannel _split_v2",
    "g0 g1 i0 o0 o1": "Pooling moments",
    "g0 i* o0": "LeakyReLU",
    "g0 i0 i1 i2": "_contrib_index_copy _linalg_gemm",
    "g0 i0 i1 o1 o2": "GroupNorm LayerNorm",
    "g0 o1": "Dropout GridGenerator",
    "g0 o1 o2 i0 i1 i3 i4": "BatchNorm_v1 _contrib_SyncBatchNorm",
    "g* i* o1": "_contrib_DeformablePSROIPooling",
    "g* i0 i1 i2": "_contrib_DeformableConvolution",
    "g0 g1": "_contrib_bipartite_matching",
    "g0 i0 o1": "LRN",
    "g0 i0 o1 i1": "BilinearSampler",
    "g0 i1 o1": "ROIPooling",
    "g0 o0 i*": "Activation",
    "g0 o0 o1 o2": "_linalg_det",
    "g0 o1 o2": "Correlation",
    "g0 o1 o2 i0": "SpatialTransformer",
    "g0 o1 o2 i0 i1": "InstanceNorm",
    "g0 o1 o2 i0 i1 i2 i3 i4": "BatchNorm",
    "g0 o1 o2 i0 i1 i2 i3 i4 o3": "_contrib_BatchNormWithReLU",
    "g1 o0 o1 o2 o3": "_linalg_slogdet",
    "i0": "make_loss",
    "i0 i1 i2 o0 g0 i3": "RNN",
    "o0 i1": "SoftmaxOutput",
}

_SIDES = _names(
    "_hypot_scalar _maximum_scalar _minimum_scalar _mod_scalar _power_scalar _rdiv_scalar _rmod_scalar "
    "_rpower_scalar abs arccos arccosh arcsin arcsinh arctan arctanh cbrt cos cosh degrees erf erfinv exp expm1 "
    "gamma gammaln log log10 log1p log2 radians rcbrt reciprocal relu rsqrt sigmoid sign sin sinh smooth_l1 "
    "softsign sqrt square tan tanh"
)


LEGACY = _names(
    "BatchNorm_v1 BilinearSampler Convolution_v1 Correlation Crop GridGenerator IdentityAttachKLSparseReg "
    "InstanceNorm L2Normalization MakeLoss Pad Pooling_v1 ROIPooling SVMOutput SequenceLast SequenceMask "
    "SequenceReverse SliceChannel SpatialTransformer SwapAxis _contrib_DeformableConvolution "
    "_contrib_DeformablePSROIPooling _contrib_MultiBoxDetection _contrib_MultiBoxPrior _contrib_MultiBoxTarget "
    "_contrib_MultiProposal _contrib_PSROIPooling _contrib_Proposal _contrib_SyncBatchNorm"
)
"""Operators of MXNet's old interface: they have a state, so that equal calls stay apart, and the outputs of their
backward nodes have the names of the inputs."""

WITHOUT_CONDITION = frozenset(["where"])
"""Operators whose backward node has no output for an input without a gradient."""

_INPUTS = {name: inputs for inputs, names in _BY_INPUTS.items() for name in names.split()}


def backward_inputs(operator: str, attrs: Mapping[str, str], gradients: int, inputs: int) -> list[tuple[str, int]]:
    """Return what an operator's backward node reads: ("g", output), ("i", input) or ("o", output).

    Args:
        operator, attrs: its name, and its attributes as they were written.
        gradients, inputs: how many outputs and inputs a node of it has.
    """
    listed: list[tuple[str, int]] = []
    if operator in _SOFTMAX:
        plain = attrs.get("dtype", "None") == "None" and attrs.get("use_length", "0") in ("0", "False", "false")
        words = "g0 o0" if plain else "g0 i* o0"
    else:
        words = _INPUTS.get(f"{operator}:{attrs.get('act_type')}") or _INPUTS.get(operator, _DEFAULT)
    for word in words.split():
        kind, number = word[0], word[1:]
        count = gradients if kind == "g" else inputs
        listed += [(kind, k) for k in range(count)] if number == "*" else [(kind, int(number))]
    return listed


def input_labels(operator: str, inputs: Sequence[tuple[str, int]]) -> list[str]:
    """Return the names of a backward node's inputs, as monitors show them behind the node's name.

    Args:
        operator: its name.
        inputs: as of `backward_inputs`.
    """
    if operator in _SOFTMAX:
        return [{"g": "ograd", "o": "output"}.get(kind, ("data", "length")[number]) for kind, number in inputs]
    if operator in _SIDES and len(inputs) == 2:
        return ["lhs", "rhs"]
    return [f"input{number}" for number in range(len(inputs))]
