"""Optimizers, as `mx.optimizer`: rules that turn gradients into new weights, where the arrays live."""

from ..absent import module_getattr
from ..ndarray import abs as NDabs
from . import contrib
from .adamw import AdamW
from .adaptive import FTML, AdaDelta, AdaGrad, Adam, Adamax, Ftrl, Nadam, RMSProp
from .gradient_descent import DCASGD, NAG, SGD, SGLD, Signum, Test, ccSGD
from .large_batch import LAMB, LARS, LBSGD
from .optimizer import OperatorUpdate, Optimizer, create, register
from .updater import Updater, get_updater

__all__ = [
    "DCASGD",
    "FTML",
    "LAMB",
    "LARS",
    "LBSGD",
    "NAG",
    "NDabs",
    "SGD",
    "SGLD",
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Nadam",
    "Optimizer",
    "RMSProp",
    "Signum",
    "Test",
    "OperatorUpdate",
    "Updater",
    "ccSGD",
    "contrib",
    "create",
    "get_updater",
    "register",
]

__getattr__ = module_getattr(__name__, __all__)
