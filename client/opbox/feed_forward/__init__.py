"""FeedForward: MXNet's first training interface, over one Module a training."""

from .feed_forward import FeedForward

__all__ = ["FeedForward"]
