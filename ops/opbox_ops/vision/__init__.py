"""Operators of object detection: boxes, anchors, matching, suppression, proposals, and pooling of regions."""
