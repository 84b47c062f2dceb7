"""Random numbers: shapes and types here, distributions in tests/ops/test_random.py."""

from .case import Arg, Case

ONE = ("float32",)
FLOATS = ("float32", "float64")
POSITIVE = Arg((2, 3), 0.5, 2.0, grad=False)
CHANCE = Arg((2, 3), 0.2, 0.8, grad=False)
WEIGHTS = Arg((2, 3), values=[[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]])


def _row(op, inputs, attrs, dtypes=ONE, grad=False, **more):
    return Case(op, inputs, attrs, dtypes=dtypes, grad=grad, random=True, **more)


CASES = [
    _row("_random_uniform", {}, {"shape": (2, 3)}),
    _row("_random_uniform", {}, {"low": -2, "high": 5, "shape": (4,), "dtype": "float64"}),
    _row("_random_uniform", {}, {"shape": (4,), "dtype": "float16"}),
    _row("_random_normal", {}, {"loc": 1, "scale": 2, "shape": (2, 3)}),
    _row("_random_normal", {}, {"shape": (2, 3), "dtype": "float16"}),
    _row("_random_gamma", {}, {"alpha": 2, "beta": 0.5, "shape": (2, 3)}),
    _row("_random_exponential", {}, {"lam": 3, "shape": (2, 3)}),
    _row("_random_poisson", {}, {"lam": 3, "shape": (2, 3)}),
    _row("_random_negative_binomial", {}, {"k": 3, "p": 0.4, "shape": (2, 3)}),
    _row("_random_generalized_negative_binomial", {}, {"mu": 2, "alpha": 0.3, "shape": (2, 3)}),
    _row("_random_randint", {}, {"low": -3, "high": 4, "shape": (2, 3)}),
    _row("_random_randint", {}, {"low": 0, "high": 2**40, "shape": (2, 3), "dtype": "int64"}),
    _row("_random_uniform_like", {"data": (2, 3)}, {"low": 2, "high": 3}, FLOATS),
    _row("_random_normal_like", {"data": (2, 3)}, {}, FLOATS),
    _row("_random_gamma_like", {"data": (2, 3)}, {}, FLOATS),
    _row("_random_exponential_like", {"data": (2, 3)}, {}, FLOATS),
    _row("_random_poisson_like", {"data": (2, 3)}, {}, FLOATS),
    _row("_random_negative_binomial_like", {"data": (2, 3)}, {"k": 2, "p": 0.5}, FLOATS),
    _row("_random_generalized_negative_binomial_like", {"data": (2, 3)}, {}, FLOATS),
    _row("_sample_uniform", {"low": (2, 3), "high": Arg((2, 3), 2, 3)}, {"shape": (4, 5)}, FLOATS),
    _row("_sample_uniform", {"low": (2,), "high": Arg((2,), 2, 3)}, {}),
    _row("_sample_normal", {"mu": (2, 3), "sigma": POSITIVE}, {"shape": (4,), "dtype": "float64"}),
    _row("_sample_gamma", {"alpha": POSITIVE, "beta": POSITIVE}, {"shape": (4,)}),
    _row("_sample_exponential", {"lam": POSITIVE}, {"shape": (4,)}),
    _row("_sample_poisson", {"lam": POSITIVE}, {"shape": (4,)}),
    _row("_sample_negative_binomial", {"k": Arg((2, 3), 1, 5, kind="int"), "p": CHANCE}, {"shape": (4,)}),
    _row("_sample_generalized_negative_binomial", {"mu": POSITIVE, "alpha": CHANCE}, {"shape": (4,)}),
    _row("_sample_multinomial", {"data": WEIGHTS}, {"shape": (4, 2)}, FLOATS),
    _row("_sample_multinomial", {"data": WEIGHTS}, {"get_prob": True}, FLOATS, grad=True),
    _row("_sample_multinomial", {"data": Arg((3,), values=[0.2, 0.3, 0.5])}, {}, zero_size=False),
    _row("_sample_unique_zipfian", {}, {"range_max": 50, "shape": (3, 8)}),
    _row("_sample_unique_zipfian", {}, {"range_max": 4, "shape": (2, 4)}),
    _row("_shuffle", {"data": (5, 3)}, {}, ("float32", "float64", "float16", "int32", "int64")),
]
