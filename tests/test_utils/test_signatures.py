"""Signatures of `mx.test_utils` are those of MXNet 1.9.1, as inspect.signature told them there."""

from __future__ import annotations

import inspect

import pytest

from opbox import test_utils

MXNET = {
    "almost_equal": "a, b, rtol=None, atol=None, equal_nan=False, use_broadcast=True",
    "assert_allclose": "a, b, rtol=1e-07, atol=0, equal_nan=True",
    "assert_almost_equal": (
        "a, b, rtol=None, atol=None, names=('a', 'b'), equal_nan=False, use_broadcast=True, mismatches=(10, 10)"
    ),
    "assert_almost_equal_ignore_nan": "a, b, rtol=None, atol=None, names=('a', 'b')",
    "assert_almost_equal_with_err": (
        "a, b, rtol=None, atol=None, etol=None, names=('a', 'b'), equal_nan=False, mismatches=(10, 10)"
    ),
    "assert_exception": "f, exception_type, *args, **kwargs",
    "assign_each": "the_input, function",
    "assign_each2": "input1, input2, function",
    "check_consistency": (
        "sym, ctx_list, scale=1.0, grad_req='write', arg_params=None, aux_params=None, rtol=None, atol=None, "
        "raise_on_err=True, ground_truth=None, equal_nan=False, use_uniform=False, rand_type=<class 'numpy.float64'>"
    ),
    "check_numeric_gradient": (
        "sym, location, aux_states=None, numeric_eps=None, rtol=None, atol=None, grad_nodes=None, "
        "use_forward_train=True, ctx=None, grad_stype_dict=None, dtype=<class 'numpy.float32'>"
    ),
    "check_speed": "sym, location=None, ctx=None, N=20, grad_req=None, typ='whole', **kwargs",
    "check_symbolic_backward": (
        "sym, location, out_grads, expected, rtol=None, atol=None, aux_states=None, grad_req='write', ctx=None, "
        "grad_stypes=None, equal_nan=False, dtype=<class 'numpy.float32'>"
    ),
    "check_symbolic_forward": (
        "sym, location, expected, rtol=None, atol=None, aux_states=None, ctx=None, equal_nan=False, "
        "dtype=<class 'numpy.float32'>"
    ),
    "chi_square_check": "generator, buckets, probs, nsamples=1000000",
    "collapse_sum_like": "a, shape",
    "compare_ndarray_tuple": "t1, t2, rtol=None, atol=None",
    "create_2d_tensor": "rows, columns, dtype=<class 'numpy.int64'>",
    "create_vector": "size, dtype=<class 'numpy.int64'>",
    "default_atols": "",
    "default_context": "",
    "default_dtype": "",
    "default_numeric_eps": "",
    "default_rtols": "",
    "discard_stderr": "",
    "effective_dtype": "dat",
    "environment": "*args",
    "gen_buckets_probs_with_ppf": "ppf, nbuckets",
    "get_etol": "etol=None",
    "get_tolerance": "dat, tol, default_tol",
    "get_tols": "x, y, rtol, atol",
    "list_gpus": "",
    "mean_check": "generator, mu, sigma, nsamples=1000000",
    "np_reduce": "dat, axis, keepdims, numpy_reduce_func",
    "numeric_grad": (
        "executor, location, aux_states=None, eps=0.0001, use_forward_train=True, dtype=<class 'numpy.float32'>"
    ),
    "rand_coord_2d": "x_low, x_high, y_low, y_high",
    "rand_ndarray": (
        "shape, stype='default', density=None, dtype=None, modifier_func=None, shuffle_csr_indices=False, "
        "distribution=None, ctx=None"
    ),
    "rand_shape_2d": "dim0=10, dim1=10, allow_zero_size=False",
    "rand_shape_3d": "dim0=10, dim1=10, dim2=10, allow_zero_size=False",
    "rand_shape_nd": "num_dim, dim=10, allow_zero_size=False",
    "random_arrays": "*shapes",
    "random_sample": "population, k",
    "random_uniform_arrays": "*shapes, **kwargs",
    "retry": "n",
    "same": "a, b",
    "same_array": "array1, array2",
    "same_symbol_structure": "sym1, sym2",
    "set_default_context": "ctx",
    "var_check": "generator, sigma, nsamples=1000000",
    "verify_generator": "generator, buckets, probs, nsamples=1000000, nrepeat=5, success_rate=0.2, alpha=0.05",
    "simple_forward": "sym, ctx=None, is_train=False, **inputs",
}


@pytest.mark.parametrize("name", MXNET)
def test_signature(name: str) -> None:
    signature = inspect.signature(getattr(test_utils, name))
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    assert str(inspect.Signature(plain)) == f"({MXNET[name]})"


def test_everything_is_listed() -> None:
    assert set(MXNET) <= set(test_utils.__all__)
