"""Initializers (`mx.init`, `mx.initializer`): fill a parameter by a rule that its name selects."""

from .base import InitDesc, Initializer, alias, create, register
from .chosen import Load, Mixed
from .drawn import MSRAPrelu, Normal, Orthogonal, Uniform, Xavier
from .fixed import Bilinear, Constant, LSTMBias, One, Zero
from .recurrent import FusedRNN

__all__ = [
    "Bilinear",
    "Constant",
    "FusedRNN",
    "InitDesc",
    "Initializer",
    "LSTMBias",
    "Load",
    "MSRAPrelu",
    "Mixed",
    "Normal",
    "One",
    "Orthogonal",
    "Uniform",
    "Xavier",
    "Zero",
    "alias",
    "create",
    "register",
]
