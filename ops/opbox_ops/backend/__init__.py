"""Device backends: arrays, arenas, copies to and from the host, random sources. One file a device library."""

from .base import Backend, RandomSource
from .select import backend_for

__all__ = ["Backend", "RandomSource", "backend_for"]
