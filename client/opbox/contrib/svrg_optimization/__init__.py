"""`mx.contrib.svrg_optimization`: training by stochastic gradients whose variance is reduced."""

from . import svrg_module
from .svrg_module import SVRGModule

__all__ = ["SVRGModule", "svrg_module"]
