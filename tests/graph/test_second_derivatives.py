"""Second derivatives beside MXNet 1.9.1's (mx.autograd.grad with create_graph=True), recorded."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.node import Entry, Node
from opbox_service.executor import bind
from opbox_service.graph import Graph
from opbox_service.graph.passes.gradient import gradient

CPU = backend_for("cpu")
POINTS = (0.25, 0.5, 0.75)
BEYOND_ONE = (1.25, 1.5, 2.0)
"""Where arccosh is defined."""

SECOND = {
    "sin": (-0.247404, -0.4794255, -0.6816388),
    "cos": (-0.9689124, -0.8775826, -0.7316889),
    "tan": (0.5439802, 1.418689, 3.480206),
    "exp": (1.284025, 1.648721, 2.117),
    "log": (-16, -4, -1.777778),
    "log2": (-23.08312, -5.77078, -2.564791),
    "log10": (-6.948712, -1.737178, -0.7720791),
    "log1p": (-0.64, -0.4444445, -0.3265306),
    "expm1": (1.284025, 1.648721, 2.117),
    "square": (2, 2, 2),
    "cbrt": (-2.23986, -0.7055116, -0.3589374),
    "rcbrt": (11.28819, 2.23986, 0.8696435),
    "sigmoid": (-0.03060752, -0.0575568, -0.07808429),
    "relu": (0, 0, 0),
    "reciprocal": (128, 16, 4.740741),
    "abs": (0, 0, 0),
    "sqrt": (-2, -0.7071068, -0.3849002),
    "rsqrt": (24, 4.24264, 1.539601),
    "tanh": (-0.4604543, -0.726862, -0.7578417),
    "sinh": (0.2526123, 0.5210953, 0.8223167),
    "cosh": (1.031413, 1.127626, 1.294683),
    "arcsin": (0.2754121, 0.7698003, 2.591757),
    "arccos": (-0.2754121, -0.7698003, -2.591757),
    "arctan": (-0.4429066, -0.64, -0.6144),
    "arcsinh": (0.2282688, 0.3577709, 0.384),
    "arccosh": (2.962963, 1.073313, 0.3849002),
    "arctanh": (0.568889, 1.777778, 7.836735),
}
"""By operator, the second derivative at POINTS."""
WRONG_SIGN = ("arcsinh", "arccosh")
"""MXNet 1.9.1 has these with the wrong sign: the second derivative of arcsinh is -x / (1 + x^2)^1.5."""


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_agree_with_mxnet(name: str) -> None:
    op = registry.get(name)
    x = Node(None, "x")
    graph = Graph([Entry(Node(op, "y", {}, op.parse({}), (Entry(x),)))])
    first = gradient(graph, ["x"])
    second = gradient(first.graph, ["x"])
    if second.grads["x"] is None:  # constant slopes
        np.testing.assert_array_equal(SECOND[name], 0)
        return
    point = np.array(BEYOND_ONE if name == "arccosh" else POINTS, np.float32)
    args = {n: CPU.put(point if n == "x" else np.ones(3, np.float32)) for n in second.graph.argument_names}
    executor = bind(second.graph, args=args, backend=CPU, random=CPU.random(0))
    executor.forward(is_train=True)
    expected = np.array(SECOND[name]) * (-1 if name in WRONG_SIGN else 1)
    np.testing.assert_allclose(executor.outputs[0], expected, rtol=2e-5, atol=1e-6)
