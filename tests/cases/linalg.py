"""dot and batch_dot."""

from .case import Case

CASES = [
    Case("dot", {"lhs": (3, 4), "rhs": (4, 5)}),
    Case("dot", {"lhs": (4, 3), "rhs": (4, 5)}, {"transpose_a": True}, zero_size=False),
    Case("dot", {"lhs": (3, 4), "rhs": (5, 4)}, {"transpose_b": True}),
    Case("dot", {"lhs": (4, 3), "rhs": (5, 4)}, {"transpose_a": True, "transpose_b": True}, zero_size=False),
    Case("dot", {"lhs": (2, 3, 4), "rhs": (4, 3, 5)}),
    Case("dot", {"lhs": (4, 2, 3), "rhs": (2, 3, 4)}, {"transpose_a": True, "transpose_b": True}, zero_size=False),
    Case("dot", {"lhs": (4,), "rhs": (4,)}),
    Case("dot", {"lhs": (3, 4), "rhs": (4,)}),
    Case("dot", {"lhs": (4,), "rhs": (4, 3)}, zero_size=False),
    Case("batch_dot", {"lhs": (2, 3, 4), "rhs": (2, 4, 5)}),
    Case("batch_dot", {"lhs": (2, 4, 3), "rhs": (2, 4, 5)}, {"transpose_a": True}),
    Case("batch_dot", {"lhs": (2, 3, 4), "rhs": (2, 5, 4)}, {"transpose_b": True}),
    Case("batch_dot", {"lhs": (2, 4, 3), "rhs": (2, 5, 4)}, {"transpose_a": True, "transpose_b": True}),
    Case("batch_dot", {"lhs": (2, 3, 2, 4), "rhs": (2, 3, 4, 5)}),
]
