"""MXNet's `mx.model`: checkpoints of networks, and the argument of batch-end callbacks."""

from .absent import module_getattr
from .callback import BatchEndParam
from .checkpoint import load_checkpoint, load_params, save_checkpoint

__all__ = ["BatchEndParam", "load_checkpoint", "load_params", "save_checkpoint"]

__getattr__ = module_getattr(__name__, __all__)
