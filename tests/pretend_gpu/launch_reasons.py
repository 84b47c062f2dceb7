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
_WINDOWS = "a thread has a window of positions, and a call's positions are few beside its arrays"
_MATCHES = "matches are found one after another: a block a sample"
_RECURSION = "steps follow one another: a block a sample and direction"
_ALONE = "a block a row of probabilities, whose running sum is one after another"

_TABLE = {
    _PANEL: {
        "opbox_solve_block": "_linalg_slogdet _linalg_potrf _linalg_inverse _linalg_det _linalg_trsm _linalg_potri "
        "_linalg_gelqf",
        "opbox_eliminate_panel": "_linalg_slogdet _linalg_inverse _linalg_det",
        "opbox_exchange_rows": "_linalg_slogdet _linalg_inverse _linalg_det",
        "opbox_determinant": "_linalg_slogdet _linalg_det",
        "opbox_cholesky_block": "_linalg_potrf",
        "opbox_reflect_rows": "_linalg_gelqf",
    },
    _STEP_OF_RNN: {"opbox_lstm": "RNN", "opbox_lstm_back": "RNN"},
    _IN_ORDER: {
        "opbox_suppress": "_contrib_Proposal _contrib_MultiProposal _contrib_box_nms",
        "opbox_strike": "_contrib_Proposal _contrib_MultiProposal",
    },
    _SMALL: {
        "opbox_lamb_direction": "_multi_lamb_update",
        "opbox_lamb_step": "_multi_lamb_update",
        "opbox_mp_lamb_direction": "_multi_mp_lamb_update",
        "opbox_mp_lamb_step": "_multi_mp_lamb_update",
    },
    _OUTPUTS: {
        "opbox_resize": "_image_resize",
        "opbox_pick": "pick",
        "opbox_pick_by_doubles": "batch_take",
        "opbox_proposal_scores": "_contrib_Proposal _contrib_MultiProposal",
        "opbox_proposal_regions": "_contrib_Proposal _contrib_MultiProposal",
        "opbox_multibox_assign": "_contrib_MultiBoxTarget",
        "opbox_multibox_targets": "_contrib_MultiBoxTarget",
    },
    _WINDOWS: {
        "opbox_add_rows": "gather_nd",
        "opbox_join_rows": "gather_nd",
        "opbox_column_windows": "_contrib_DeformableConvolution",
    },
    _MATCHES: {"opbox_match": "_contrib_bipartite_matching"},
    _RECURSION: {"opbox_ctc_recursion": "CTCLoss"},
    _ALONE: {"opbox_positions": "_sample_multinomial"},
}
"""By reason and kernel, the operators in whose calls, forward or backward, it is launched."""

REASONS: dict[tuple[str, str], str] = {
    (operator, kernel): reason
    for reason, kernels in _TABLE.items()
    for kernel, operators in kernels.items()
    for operator in operators.split()
}
"""Why a kernel of an operator is launched with so few blocks, or such long loops."""
UNKNOWN: dict[str, str] = {}
"""Why what an operator launches is not known."""
