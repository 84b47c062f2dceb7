"""Operators on images: to tensors, parts, sizes, colours. An image is (height, width, channel); some take batches."""
