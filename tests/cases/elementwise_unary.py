"""Functions of one array: each where it is smooth, then all at once at kinks, poles, infinities and NaN."""

from .case import FLOATS, Arg, Case

WHOLE = ("int32", "int64", "int8", "uint8")
NAN, INF = float("nan"), float("inf")
EDGES = Arg((13,), values=[-2.5, -1.5, -1, -0.5, -0.0, 0.0, 0.5, 1, 1.5, 2.5, NAN, INF, -INF])

SMOOTH = {
    "abs": (-3, 3),
    "sign": (-3, 3),
    "round": (-3, 3),
    "rint": (-3, 3),
    "ceil": (-3, 3),
    "floor": (-3, 3),
    "trunc": (-3, 3),
    "fix": (-3, 3),
    "square": (-3, 3),
    "sqrt": (0.1, 4),
    "rsqrt": (0.2, 4),
    "cbrt": (0.1, 4),
    "rcbrt": (0.2, 4),
    "reciprocal": (0.2, 3),
    "negative": (-3, 3),
    "exp": (-2, 2),
    "expm1": (-2, 2),
    "log": (0.1, 4),
    "log10": (0.1, 4),
    "log2": (0.1, 4),
    "log1p": (-0.8, 3),
    "sin": (-3, 3),
    "cos": (-3, 3),
    "tan": (-1.2, 1.2),
    "arcsin": (-0.9, 0.9),
    "arccos": (-0.9, 0.9),
    "arctan": (-3, 3),
    "sinh": (-2, 2),
    "cosh": (-2, 2),
    "tanh": (-2, 2),
    "arcsinh": (-3, 3),
    "arccosh": (1.2, 4),
    "arctanh": (-0.9, 0.9),
    "degrees": (-3, 3),
    "radians": (-3, 3),
    "relu": (-2, 2),
    "sigmoid": (-4, 4),
    "softsign": (-3, 3),
    "erf": (-2, 2),
    "erfinv": (-0.9, 0.9),
    "gamma": (1.6, 4),
    "gammaln": (1.7, 4),
    "logical_not": (-2, 2),
    "_contrib_round_ste": (-3, 3),
    "_contrib_sign_ste": (-3, 3),
}
EXACT = ("abs", "sign", "round", "rint", "ceil", "floor", "trunc", "fix", "square", "negative", "relu", "logical_not")
STRAIGHT_THROUGH = ("_contrib_round_ste", "_contrib_sign_ste")
THROUGH = "the gradient is the identity's, and not the derivative"
PSI = "MXNet's digamma is good to six digits."

CASES = [
    Case(
        name,
        {"data": Arg((2, 3, 4), low, high)},
        dtypes=FLOATS + (WHOLE if name in EXACT else ()),
        rtol=1e-4 if name.startswith("gamma") else None,
        numeric=name not in STRAIGHT_THROUGH,
        why=PSI if name.startswith("gamma") else THROUGH if name in STRAIGHT_THROUGH else "",
    )
    for name, (low, high) in SMOOTH.items()
]
CASES += [
    Case(name, {"data": EDGES}, numeric=False, why="Every special value, in one array.")
    for name in SMOOTH
    if name not in ("gamma", "gammaln")
]
CASES += [
    Case("exp", {"data": Arg((5,), -2, 4, kind="int")}, dtypes=("int32", "int8"), numeric=False),
    Case("sqrt", {"data": Arg((5,), 1, 9, kind="int")}, dtypes=("int32", "uint8"), numeric=False),
    Case("gamma", {"data": Arg((4,), values=[0.5, 1, -0.5, NAN])}, rtol=1e-4, numeric=False, why=PSI),
    Case("gammaln", {"data": Arg((5,), values=[0.5, 1, -0.5, NAN, INF])}, rtol=1e-4, numeric=False, why=PSI),
]
