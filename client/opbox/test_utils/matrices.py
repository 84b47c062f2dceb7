"""Random matrices with known properties, as tests of matrix operators need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

__all__ = [
    "get_identity_mat",
    "get_identity_mat_batch",
    "new_matrix_with_real_eigvals_2d",
    "new_matrix_with_real_eigvals_nd",
    "new_orthonormal_matrix_2d",
    "new_sym_matrix_with_real_eigvals_2d",
    "new_sym_matrix_with_real_eigvals_nd",
]

MAX_CONDITION = 3.0
"""The condition number that the eigenvectors of a matrix stay below."""

Matrix = np.ndarray[Any, np.dtype[np.float64]]


def get_identity_mat(size: int) -> Any:
    """Return the identity matrix (size, size), an NDArray."""
    from ..ndarray import eye

    return eye(size)


def get_identity_mat_batch(size: int) -> Any:
    """Return two identity matrices (2, size, size), an NDArray."""
    from ..ndarray import stack

    matrix = get_identity_mat(size)
    return stack(matrix, matrix, axis=0)


def new_matrix_with_real_eigvals_2d(n: int) -> Matrix:
    """Return a matrix (n, n) with real eigenvalues from -10 to 10 and well-conditioned eigenvectors.

    Example:
        >>> np.linalg.eigvals(mx.test_utils.new_matrix_with_real_eigvals_2d(3)).imag.any()
        False
    """
    vectors = np.ones((n, n))
    while np.linalg.cond(vectors) >= MAX_CONDITION:
        axis = np.random.uniform(-1.0, 1.0, (n, 1))
        axis /= np.linalg.norm(axis)
        reflection = np.eye(n) - 2 * axis @ axis.T
        vectors = reflection @ np.diag(np.random.uniform(-1.0, 1.0, n))
        if n == 1:
            break  # any number's condition is 1
    return np.asarray(np.linalg.inv(vectors) @ np.diag(np.random.uniform(-10.0, 10.0, n)) @ vectors)


def new_matrix_with_real_eigvals_nd(shape: Sequence[int]) -> Matrix:
    """Return matrices (…, n, n) as `new_matrix_with_real_eigvals_2d` makes them."""
    return _batch(shape, new_matrix_with_real_eigvals_2d)


def new_orthonormal_matrix_2d(n: int) -> Matrix:
    """Return a random orthonormal matrix (n, n)."""
    x = np.random.randn(n, n)
    return np.asarray(np.linalg.qr(x.T @ x)[0])


def new_sym_matrix_with_real_eigvals_2d(n: int) -> Matrix:
    """Return a symmetric matrix (n, n) with eigenvalues from -10 to 10."""
    q = new_orthonormal_matrix_2d(n)
    return np.asarray(q.T @ np.diag(np.random.uniform(-10.0, 10.0, n)) @ q)


def new_sym_matrix_with_real_eigvals_nd(shape: Sequence[int]) -> Matrix:
    """Return symmetric matrices (…, n, n) with eigenvalues from -10 to 10."""
    return _batch(shape, new_sym_matrix_with_real_eigvals_2d)


def _batch(shape: Sequence[int], make: Callable[[int], Matrix]) -> Matrix:
    """As many matrices as a shape has."""
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"shape: expected that of square matrices, got {tuple(shape)}")
    return np.array([make(shape[-1]) for _ in range(prod(shape[:-2]))]).reshape(tuple(shape))
