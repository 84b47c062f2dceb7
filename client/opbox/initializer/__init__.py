"""Initializers (`mx.init`, `mx.initializer`): fill a parameter by a rule that its name selects."""

from .constant import Bilinear, Constant, LSTMBias, One, Zero
from .initializer import InitDesc, Initializer, alias, create, register
from .mixed import Load, Mixed
from .random import MSRAPrelu, Normal, Orthogonal, Uniform, Xavier
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
