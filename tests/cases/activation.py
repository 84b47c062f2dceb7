"""Activation and LeakyReLU."""

from .case import Arg, Case

# Not within a difference quotient of the kink at 0.
_DATA = Arg((3, 4, 5), low=-3.0, high=3.0, kind="distinct")

CASES = [
    *[
        Case("Activation", {"data": _DATA}, {"act_type": act_type}, atol=2e-6, why="exp and tanh differ by some ulp")
        for act_type in ("relu", "sigmoid", "softrelu", "softsign", "tanh")
    ],
    Case("LeakyReLU", {"data": _DATA}),
    Case("LeakyReLU", {"data": _DATA}, {"act_type": "leaky", "slope": 0.1}),
    Case("LeakyReLU", {"data": _DATA}, {"act_type": "elu"}, atol=1e-5, why="exp differs by some ulp"),
    Case("LeakyReLU", {"data": _DATA}, {"act_type": "elu", "slope": 0.7}, atol=1e-5, why="exp differs by some ulp"),
    Case("LeakyReLU", {"data": _DATA}, {"act_type": "gelu"}, atol=1e-5, why="erf differs by some ulp"),
    Case("LeakyReLU", {"data": _DATA}, {"act_type": "selu"}, atol=1e-5, grad=False, why="exp differs by some ulp"),
    Case(
        "LeakyReLU", {"data": (3, 4)}, {"act_type": "selu"}, oracle=False, why="MXNet's gradient is not the derivative"
    ),
    Case("LeakyReLU", {"data": _DATA, "gamma": (4,)}, {"act_type": "prelu"}),
    Case("LeakyReLU", {"data": _DATA, "gamma": (1,)}, {"act_type": "prelu"}, zero_size=False, settled=False),
    Case("LeakyReLU", {"data": Arg((3, 4), kind="distinct"), "gamma": (4,)}, {"act_type": "prelu"}),
    Case(
        "LeakyReLU",
        {"data": Arg((2, 3, 4), kind="distinct"), "gamma": (1, 3, 1)},
        {"act_type": "prelu"},
        settled=False,
        zero_size=False,
        oracle=False,
        why="MXNet repeats gamma along leading axes alone",
    ),
    *[
        Case(
            "LeakyReLU",
            {"data": Arg(shape, kind="distinct"), "gamma": gamma},
            {"act_type": "prelu"},
            settled=False,
            zero_size=False,
            why="of all shapes that gamma may have inference supposes one",
        )
        for shape, gamma in (((3,), (3,)), ((3,), (1,)), ((3, 4), (3, 4)), ((3, 4), (1, 4)))
    ],
    Case(
        "LeakyReLU", {"data": (3, 4, 5)}, {"act_type": "rrelu"}, random=True, oracle=False, why="MXNet's draws differ"
    ),
]
