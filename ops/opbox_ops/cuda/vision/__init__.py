"""Kernels of our own for object detection: sorting and suppression of boxes, matching, and pooling of regions."""
