"""MXNet's `mx.model`: checkpoints of networks, FeedForward, and the argument of batch-end callbacks."""

from .absent import module_getattr
from .callback import BatchEndParam
from .checkpoint import load_checkpoint, load_params, save_checkpoint
from .feed_forward import FeedForward

__all__ = ["BatchEndParam", "FeedForward", "load_checkpoint", "load_params", "save_checkpoint"]

__getattr__ = module_getattr(__name__, __all__)
