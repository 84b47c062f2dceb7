"""Densities of distributions, for samples of every number of draws."""

from __future__ import annotations

from .case import Arg, Case

DTYPES = ("float32", "float64", "float16")
NARROW = ("float32", "float64")
POSITIVE = (0.5, 2.0)
COUNTS = {"low": 0, "high": 6, "kind": "int"}
PARAMS = {
    "uniform": {"low": (-2.0, -1.0), "high": (1.0, 3.0)},
    "normal": {"mu": (-1.0, 1.0), "sigma": POSITIVE},
    "gamma": {"alpha": POSITIVE, "beta": POSITIVE},
    "exponential": {"lam": POSITIVE},
    "poisson": {"lam": POSITIVE},
    "negative_binomial": {"k": (1.0, 4.0), "p": (0.2, 0.8)},
    "generalized_negative_binomial": {"mu": POSITIVE, "alpha": (0.25, 1.0)},
}
DISCRETE = ("poisson", "negative_binomial", "generalized_negative_binomial")
COUNTED = "a count has no derivative"


def _row(name: str, shape: tuple[int, ...], draws: tuple[int, ...], is_log: bool, dtypes: tuple[str, ...]) -> Case:
    sample_shape = (*shape, *draws)
    if name in DISCRETE:
        sample = Arg(sample_shape, 0, 6, kind="int")
    elif name == "gamma" or name == "exponential":
        sample = Arg(sample_shape, 0.25, 3.0)
    else:
        sample = Arg(sample_shape)
    params = {key: Arg(shape, low, high) for key, (low, high) in PARAMS[name].items()}
    more = {"numeric": False, "why": COUNTED} if name in DISCRETE else {}
    return Case(f"_random_pdf_{name}", {"sample": sample, **params}, {"is_log": is_log}, dtypes=dtypes, **more)


def _dirichlet(shape: tuple[int, ...], draws: tuple[int, ...], is_log: bool) -> Case:
    inputs = {"sample": Arg((*shape, *draws, 3), 0.125, 0.75), "alpha": Arg((*shape, 3), 1.0, 3.0)}
    return Case("_random_pdf_dirichlet", inputs, {"is_log": is_log}, dtypes=DTYPES, zero_size=bool(shape))


CASES = [
    *[_row(name, (2,), (3,), is_log, DTYPES) for name in PARAMS for is_log in (False, True)],
    *[_row(name, (2, 3), (), False, NARROW) for name in PARAMS],
    *[_row(name, (2,), (2, 3), True, NARROW) for name in PARAMS],
    _dirichlet((2,), (4,), False),
    _dirichlet((2,), (4,), True),
    _dirichlet((2, 3), (), False),
    _dirichlet((), (4,), False),
    _dirichlet((2,), (2, 3), True),
]
