"""What a plan may still do to the GPU while it runs, by family and operator: both lists may only shrink."""

__all__ = ["ALLOCATE", "REFUSED"]

ALLOCATE = {
    "boxes": ("_backward_contrib_box_nms _contrib_bipartite_matching _contrib_box_nms"),
    "contrib": (
        "_backward_contrib_fft _backward_contrib_ifft _backward_contrib_index_copy "
        "_contrib_boolean_mask _contrib_fft _contrib_ifft"
    ),
    "image": ("_image_random_color_jitter _image_random_contrast _image_resize"),
    "matrices": (
        "_backward_linalg_det _backward_linalg_gelqf _backward_linalg_potrf _backward_linalg_potri "
        "_backward_linalg_slogdet _backward_linalg_syevd _backward_linalg_trsm _linalg_det _linalg_gelqf "
        "_linalg_inverse _linalg_potrf _linalg_potri _linalg_slogdet _linalg_syevd _linalg_trsm"
    ),
    "multibox": "_contrib_MultiBoxDetection _contrib_MultiBoxTarget",
    "regions": (
        "_backward_DeformablePSROIPooling _backward_PSROIPooling _backward_ROIAlign "
        "_contrib_DeformablePSROIPooling _contrib_MultiProposal _contrib_PSROIPooling _contrib_Proposal "
        "_contrib_ROIAlign _contrib_RROIAlign"
    ),
    "sampling": (
        "BilinearSampler Correlation GridGenerator SpatialTransformer _backward_BilinearSampler "
        "_backward_GridGenerator _backward_SpatialTransformer "
        "_backward__contrib_DeformableConvolution _backward__contrib_ModulatedDeformableConvolution "
        "_contrib_DeformableConvolution _contrib_ModulatedDeformableConvolution"
    ),
}
"""Operators that ask for memory in the first row of their operator, by family."""

REFUSED = {
    "boxes": "_backward_contrib_box_nms _contrib_bipartite_matching _contrib_box_nms",
    "contrib": "_backward_contrib_fft _backward_contrib_ifft _contrib_boolean_mask _contrib_fft _contrib_ifft",
    "image": (
        "_image_random_brightness _image_random_color_jitter _image_random_contrast _image_random_hue "
        "_image_random_lighting _image_random_saturation _image_resize"
    ),
    "matrices": (
        "_backward_linalg_det _backward_linalg_gelqf _backward_linalg_potrf _backward_linalg_potri "
        "_backward_linalg_slogdet _backward_linalg_syevd _backward_linalg_trsm _linalg_det _linalg_gelqf "
        "_linalg_inverse _linalg_potrf _linalg_potri _linalg_slogdet _linalg_syevd _linalg_trsm"
    ),
    "multibox": "_contrib_MultiBoxDetection _contrib_MultiBoxTarget",
    "regions": ("_backward_ROIAlign _contrib_MultiProposal _contrib_Proposal _contrib_ROIAlign _contrib_RROIAlign"),
    "sampling": (
        "Correlation GridGenerator SpatialTransformer "
        "_backward_GridGenerator _backward_SpatialTransformer "
        "_backward__contrib_DeformableConvolution _backward__contrib_ModulatedDeformableConvolution "
        "_contrib_DeformableConvolution _contrib_ModulatedDeformableConvolution"
    ),
}
"""Operators that synchronise, copy from or to the host, or call a library that refuses stream capture."""
