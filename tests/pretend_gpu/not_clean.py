"""What a plan may still do to the GPU while it runs, by family and operator: both lists may only shrink."""

__all__ = ["ALLOCATE", "REFUSED"]

ALLOCATE = {
    "boxes": ("_backward_contrib_box_nms _contrib_bipartite_matching _contrib_box_nms"),
    "contrib": ("_contrib_boolean_mask"),
    "counting": ("_histogram"),
    "multibox": ("_contrib_MultiBoxDetection _contrib_MultiBoxTarget"),
    "regions": (
        "_backward_DeformablePSROIPooling _backward_PSROIPooling _backward_ROIAlign "
        "_contrib_DeformablePSROIPooling _contrib_MultiProposal _contrib_PSROIPooling _contrib_Proposal "
        "_contrib_ROIAlign _contrib_RROIAlign"
    ),
}
"""Operators that ask for memory in the first row of their operator, by family."""

REFUSED = {
    "boxes": ("_backward_contrib_box_nms _contrib_bipartite_matching _contrib_box_nms"),
    "contrib": ("_contrib_boolean_mask"),
    "counting": ("_histogram"),
    "multibox": ("_contrib_MultiBoxDetection _contrib_MultiBoxTarget"),
    "regions": ("_backward_ROIAlign _contrib_MultiProposal _contrib_Proposal _contrib_ROIAlign _contrib_RROIAlign"),
}
"""Operators that synchronise, copy from or to the host, or call a library that refuses stream capture."""
