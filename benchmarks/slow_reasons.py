"""Why an operator takes longer than MXNet 1.9.1's on the CPU: printed by operators.py beside its ratio."""

from __future__ import annotations

__all__ = ["REASONS"]

DOZENS = "small: dozens of NumPy calls on a few numbers, a microsecond each"
SOME = "small: a dozen NumPy calls on a few numbers"
SORTED = "small: sorting and striking boxes in dozens of NumPy calls"
REGIONS = "a sparse matrix is made of every region's samples for each call"
DRAWS = "small: a generator's call and its checks of parameters"
LAPACK = "small: SciPy's checks around a LAPACK call on a few numbers"

REASONS: dict[str, str] = {
    "BilinearSampler": DOZENS,
    "CTCLoss": "the recursion over time is in NumPy calls, for the whole batch at once",
    "Convolution": SOME,
    "Convolution_v1": SOME,
    "Correlation": "small: a NumPy call for every displacement",
    "Deconvolution": "where windows do not overlap, columns are made and added up apart from the product",
    "GridGenerator": SOME,
    "Pooling": "maxima are taken place by place, and looked for again by the gradient; oneDNN keeps their places",
    "Pooling_v1": SOME,
    "ROIPooling": DOZENS + "; large: the gradient compares every place of a part with its maximum",
    "SpatialTransformer": DOZENS,
    "_contrib_DeformableConvolution": DOZENS,
    "_contrib_DeformablePSROIPooling": f"{DOZENS}; large: {REGIONS}",
    "_contrib_MultiBoxDetection": f"{SORTED}; large: thousands of images of three anchors",
    "_contrib_MultiBoxPrior": SOME,
    "_contrib_MultiBoxTarget": DOZENS,
    "_contrib_MultiProposal": f"{SORTED}; large: boxes are struck in blocks of 64, many pairs in vain",
    "_contrib_PSROIPooling": f"{DOZENS}; large: a table of sums over the whole image, in double precision",
    "_contrib_Proposal": f"{SORTED}; large: boxes are struck in blocks of 64, many pairs in vain",
    "_contrib_ROIAlign": DOZENS,
    "_contrib_RROIAlign": f"{DOZENS}; large: {REGIONS}",
    "_contrib_allclose": SOME,
    "_contrib_bipartite_matching": "small: a round of NumPy calls for every match",
    "_contrib_box_encode": SOME,
    "_contrib_box_iou": SOME,
    "_contrib_box_nms": SORTED,
    "_image_random_color_jitter": "a pass of NumPy calls for each of brightness, contrast, saturation and hue",
    "_image_random_contrast": "products and a mean of their own, where MXNet does one pass",
    "_image_random_hue": "dozens of NumPy passes turn colours into hue, lightness and saturation, and back",
    "_linalg_det": "large: the gradient factorises once more, for no factors are kept",
    "_linalg_gelqf": LAPACK,
    "_linalg_potri": LAPACK,
    "_linalg_slogdet": "large: the gradient factorises once more, for no factors are kept",
    "_linalg_syevd": LAPACK,
    "_linalg_trsm": "a call of BLAS for each matrix of a batch",
    "_random_pdf_generalized_negative_binomial": SOME,
    "_sample_generalized_negative_binomial": DRAWS,
    "_sample_multinomial": "large: sums of probabilities, and a search in them for each draw, in double precision",
    "_sample_negative_binomial": DRAWS,
    "_sample_unique_zipfian": "small: draws come in rounds until enough of them differ",
    "_contrib_BatchNormWithReLU": SOME,
    "batch_take": SOME,
    "col2im": SOME,
    "im2col": SOME,
    "one_hot": "large: zeros, and then a number at a position of each row, are two passes",
    "pick": SOME,
    "softmax_cross_entropy": SOME,
}
