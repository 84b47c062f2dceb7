"""When a launch leaves a GPU's processors idle, and which kernels may."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LONGEST_LOOP", "PROCESSORS", "REASONS", "UNKNOWN", "Launch"]

PROCESSORS = 132
"""Of an H100."""
LONGEST_LOOP = 4096
"""Elements that a thread may go through."""
_SHORT_LOOP = 16
"""Elements that a thread may go through while there are processors without a block."""


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel.

    Attributes:
        operator: whose compute launched it.
        kernel: its name.
        blocks, threads: how many, and of each block.
        elements: that it works on.
    """

    operator: str
    kernel: str
    blocks: int
    threads: int
    elements: int

    @property
    def fault(self) -> str:
        """Why it is too slow; empty where it is not."""
        loop = self.elements / (self.blocks * self.threads)
        if loop > LONGEST_LOOP:
            return f"a thread has {loop:,.0f} elements"
        if self.blocks < PROCESSORS and loop > _SHORT_LOOP:
            return f"{self.blocks} of {PROCESSORS} processors have a block"
        return ""


_PANEL = "a factorisation's next 32 columns or rows, which need the ones before them; the rest is one product"
_STEP_OF_RNN = "the gates of one step: the arrays are those of all steps"
_IN_ORDER = "an image's boxes suppress one another in order: a block an image"
_SMALL = "a small weight beside larger ones: scratch is as large as theirs"
_OUTPUTS = "as many threads as outputs: the input is larger, and a few of its elements are read"
_ROWS = "open: rows"
_SCATTER = "open: scatter"
_ALONE = "open: one row, or a few, with a block each"

_TABLE = {
    _PANEL: {
        "opbox_solve_block": "_linalg_slogdet _linalg_potrf _linalg_inverse _linalg_det _linalg_trsm _linalg_potri "
        "_backward_linalg_slogdet _backward_linalg_potrf _backward_linalg_det _backward_linalg_trsm "
        "_backward_linalg_potri _backward_linalg_gelqf",
        "opbox_eliminate_panel": "_linalg_slogdet _linalg_inverse _linalg_det _backward_linalg_slogdet "
        "_backward_linalg_det",
        "opbox_exchange_rows": "_linalg_slogdet _linalg_inverse _linalg_det _backward_linalg_slogdet "
        "_backward_linalg_det",
        "opbox_determinant": "_linalg_slogdet _linalg_det",
        "opbox_cholesky_block": "_linalg_potrf",
        "opbox_reflect_rows": "_linalg_gelqf",
    },
    _STEP_OF_RNN: {"opbox_lstm": "RNN", "opbox_lstm_back": "_backward_RNN"},
    _IN_ORDER: {"opbox_suppress": "_contrib_Proposal _contrib_MultiProposal"},
    _SMALL: {
        "opbox_lamb_direction": "_multi_lamb_update",
        "opbox_lamb_step": "_multi_lamb_update",
        "opbox_mp_lamb_direction": "_multi_mp_lamb_update",
        "opbox_mp_lamb_step": "_multi_mp_lamb_update",
    },
    _OUTPUTS: {
        "opbox_resize": "_image_resize",
        "opbox_proposal_scores": "_contrib_Proposal _contrib_MultiProposal",
        "opbox_proposal_regions": "_contrib_Proposal _contrib_MultiProposal",
        "opbox_psroi_pooling": "_contrib_PSROIPooling",
        "opbox_deformable_pooling": "_contrib_DeformablePSROIPooling",
        "opbox_multibox_assign": "_contrib_MultiBoxTarget",
        "opbox_multibox_targets": "_contrib_MultiBoxTarget",
    },
    _ROWS: {
        "opbox_softmax_columns": "softmax",
        "opbox_softmax_columns_back": "_backward_softmax",
        "opbox_batch_norm": "BatchNorm",
        "opbox_batch_norm_back": "_backward_BatchNorm",
        "opbox_pool": "Pooling",
    },
    _SCATTER: {
        "opbox_match": "_contrib_bipartite_matching",
        "opbox_sample_boxes": "_backward_BilinearSampler _backward_SpatialTransformer "
        "_backward__contrib_DeformableConvolution",
        "opbox_sample_slopes": "_backward_BilinearSampler _backward_SpatialTransformer",
        "opbox_columns_spread": "_backward__contrib_DeformableConvolution",
        "opbox_column_slopes": "_backward__contrib_DeformableConvolution",
        "opbox_deformable_reach": "_backward_DeformablePSROIPooling",
    },
    _ALONE: {
        "opbox_cumsum_by_block": "_np_cumsum _backward_np_cumsum",
        "opbox_positions": "_sample_multinomial",
        "opbox_convolution_bias_back": "_backward_Convolution _backward_Deconvolution",
    },
}
"""By reason and kernel, the operators."""

REASONS: dict[tuple[str, str], str] = {
    (operator, kernel): reason
    for reason, kernels in _TABLE.items()
    for kernel, operators in kernels.items()
    for operator in operators.split()
}
"""Why a kernel of an operator is launched with so few blocks, or such long loops."""
UNKNOWN: dict[str, str] = {}
"""Why what an operator launches is not known."""
