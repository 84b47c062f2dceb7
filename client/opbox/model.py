"""MXNet's `mx.model`: checkpoints of networks, FeedForward, and the argument of batch-end callbacks."""

from .absent import module_getattr
from .callback import BatchEndParam
from .checkpoint import load_checkpoint, load_params, save_checkpoint
from .feed_forward import FeedForward
from .module.updates import create_kvstore as _create_kvstore
from .module.updates import initialize_kvstore as _initialize_kvstore
from .module.updates import update_params as _update_params
from .module.updates import update_params_on_kvstore as _update_params_on_kvstore

__all__ = [
    "BatchEndParam",
    "FeedForward",
    "_create_kvstore",
    "_initialize_kvstore",
    "_update_params",
    "_update_params_on_kvstore",
    "load_checkpoint",
    "load_params",
    "save_checkpoint",
]

__getattr__ = module_getattr(__name__, __all__)
