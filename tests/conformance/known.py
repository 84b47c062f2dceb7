"""What is known to differ from MXNet 1.9.1 on drawn calls, with its reason (docs/differences.md says more)."""

from __future__ import annotations

__all__ = ["DIFFERENT", "UNCOMPARED"]

UNCOMPARED: dict[str, str] = {
    "_contrib_boolean_mask": "The shape of its output depends on values: a call on arrays alone takes it here.",
    "reset_arrays": "It has no output.",
}
"""Operators that are not called in MXNet, and why."""

UNCHECKED = "MXNet takes sizes that do not fit, and reads what lies beside its arrays."
LENIENT = "MXNet takes values without a meaning, here they are refused."
UNSET = "MXNet leaves the output, or a part of it, unset."

HALF = "With dtype=float32 half precision is widened first; MXNet widens the result."
FULL = "Average pooling in the convention full: MXNet divides gradients by another count than values."
ONE_LINE = "A grid of one row or column: MXNet divides by its length less 1."
ALPHA = "An alpha of 0 makes 0; MXNet multiplies what is infinite with it."
ABSENT = "A region on an image that is not there is 0; MXNet reads beyond its memory."
BEYOND = "Lengths beyond the axis: MXNet reads what lies there."

DIFFERENT: dict[tuple[str, str], str] = {
    ("BatchNorm", "raises"): "MXNet takes gamma and beta of any rank with as many numbers.",
    ("CTCLoss", "forward"): "MXNet reads beyond its memory for empty labels, and for numbers that are no class.",
    ("Correlation", "raises"): LENIENT,
    ("Crop", "raises"): LENIENT,
    ("LRN", "raises"): LENIENT,
    ("Reshape", "raises"): "MXNet cuts off what does not fit the new shape.",
    ("SoftmaxActivation", "gradient"): "MXNet's gradient is of axis 1, its value of the last.",
    ("SoftmaxActivation", "req"): "MXNet's gradient is of axis 1, its value of the last.",
    ("_contrib_AdaptiveAvgPooling2D", "raises"): LENIENT,
    ("_contrib_DeformablePSROIPooling", "raises"): UNCHECKED,
    ("_contrib_PSROIPooling", "raises"): UNCHECKED,
    ("_contrib_SyncBatchNorm", "forward"): "The variance of nothing.",
    ("_contrib_allclose", "raises"): UNCHECKED,
    ("_contrib_arange_like", "raises"): LENIENT,
    ("_contrib_box_encode", "raises"): UNCHECKED,
    ("_contrib_box_decode", "raises"): UNCHECKED,
    ("_contrib_index_array", "raises"): UNCHECKED,
    ("_contrib_interleaved_matmul_encdec_qk", "raises"): UNCHECKED,
    ("_contrib_interleaved_matmul_selfatt_qk", "raises"): UNCHECKED,
    ("_contrib_interleaved_matmul_selfatt_valatt", "raises"): UNCHECKED,
    ("_image_flip_left_right", "forward"): UNSET,
    ("_image_flip_top_bottom", "forward"): UNSET,
    ("_image_crop", "raises"): "MXNet reads before the image for a negative x or y.",
    ("_image_resize", "raises"): "MXNet takes int8 for uint8.",
    ("_image_resize", "forward"): "Halves are rounded by the position of a pixel in MXNet.",
    ("_image_random_hue", "forward"): UNSET,
    ("_image_random_saturation", "forward"): UNSET,
    ("_image_adjust_lighting", "forward"): UNSET,
    ("_linalg_det", "forward"): "The determinant of an empty matrix is 1; MXNet leaves it unset.",
    ("_linalg_slogdet", "forward"): "The determinant of an empty matrix is 1; MXNet leaves it unset.",
    ("_linalg_trsm", "raises"): "A triangular matrix with a 0 on its diagonal is refused; MXNet divides by it.",
    ("_ravel_multi_index", "raises"): LENIENT,
    ("_unravel_index", "raises"): LENIENT,
    ("_unravel_index", "forward"): "MXNet's output has another shape where `shape` has one dimension.",
    ("_unravel_index", "shape"): "MXNet's output has another shape where `shape` has one dimension.",
    ("_split_v2", "raises"): LENIENT,
    ("amp_cast", "forward"): "To integers MXNet's build rounds, here they are cut off as Cast does.",
    ("amp_multicast", "type"): "What is not known yet stays unknown.",
    ("moments", "forward"): "The variance of nothing.",
    ("stack", "raises"): UNCHECKED,
    ("batch_take", "raises"): UNCHECKED,
    ("im2col", "raises"): UNCHECKED,
    ("where", "raises"): UNCHECKED,
    ("softmax_cross_entropy", "forward"): "Labels beyond the classes: MXNet reads what lies there.",
    ("BatchNorm", "gradient"): "The variance of nothing.",
    ("Pooling", "raises"): LENIENT,
    ("Pooling_v1", "raises"): LENIENT,
    ("ROIPooling", "forward"): ABSENT,
    ("SequenceReverse", "forward"): BEYOND,
    ("SoftmaxOutput", "gradient"): "With out_grad MXNet multiplies by the output, here by the head gradient.",
    ("SpatialTransformer", "raises"): LENIENT,
    ("_contrib_RROIAlign", "forward"): ABSENT,
    ("log_softmax", "raises"): "MXNet does not look at the axis of an empty array.",
    ("Pooling", "gradient"): FULL,
    ("Pooling", "req"): FULL,
    ("SpatialTransformer", "forward"): ONE_LINE,
    ("SpatialTransformer", "gradient"): ONE_LINE,
    ("SpatialTransformer", "req"): ONE_LINE,
    ("GridGenerator", "forward"): ONE_LINE,
    ("_contrib_MultiProposal", "raises"): LENIENT,
    ("_contrib_Proposal", "raises"): LENIENT,
    ("_contrib_arange_like", "forward"): UNSET,
    ("_eye", "raises"): LENIENT,
    ("_histogram", "raises"): LENIENT,
    ("_linalg_trsm", "gradient"): ALPHA,
    ("_linalg_trsm", "req"): ALPHA,
    ("_linalg_trsm", "forward"): ALPHA,
    ("_mp_adamw_update", "raises"): UNCHECKED,
    ("_random_negative_binomial_like", "raises"): LENIENT,
    ("_random_negative_binomial", "raises"): LENIENT,
    ("ftml_update", "raises"): LENIENT,
    ("softmax", "forward"): BEYOND,
    ("softmax", "gradient"): BEYOND,
    ("softmax", "req"): BEYOND,
    ("softmax", "raises"): "MXNet takes integers where there are none.",
    ("mp_lamb_update_phase1", "forward"): "MXNet rounds the scaled gradient to half precision.",
    ("all_finite", "forward"): UNSET,
    ("multi_all_finite", "forward"): UNSET,
    ("clip", "forward"): "A negative upper limit of unsigned numbers: MXNet wraps it around.",
    ("log_softmax", "forward"): HALF,
    ("softmin", "forward"): HALF,
    ("norm", "forward"): "The root of integers' squares is cut off once; MXNet cuts off after every square.",
}
"""Operators and aspects that differ, and why."""
