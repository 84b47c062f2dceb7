"""Matrices: products, factorisations, triangles and diagonals. Fully connected layers are in nn."""
