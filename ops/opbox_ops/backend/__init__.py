"""Device backends: arrays, arenas, copies to and from the host, random sources. One file a device library."""

from .base import Backend
from .failure import device_error, lost
from .peer import copy_between
from .random import NodeStream, NodeStreams, RandomSource
from .select import backend_for, device_name

__all__ = ["Backend", "NodeStream", "NodeStreams", "RandomSource", "backend_for", "copy_between"]
__all__ += ["device_error", "device_name", "lost"]
