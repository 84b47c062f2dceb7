"""What goes wrong in an operator's code is told in one sentence, with the user's line and the user's own traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_protocol import errors
from tests.custom import operators as own

LINES = Path(own.__file__).read_text().splitlines()


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(LINES, 1) if text in line)


def run(net: Any, backward: bool = False) -> None:
    executor = net.simple_bind(mx.cpu(), data=(2, 3))
    executor.forward(is_train=True)
    if backward:
        executor.backward(mx.nd.ones((2, 3)))
    executor.outputs[0].asnumpy()


def bad(**kwargs: str) -> Any:
    return mx.sym.Custom(mx.sym.Variable("data"), op_type="bad", name="mine", **kwargs)


def test_the_users_traceback(engine: str) -> None:
    with pytest.raises(errors.UserCodeError) as caught:
        run(bad(how="raise"))
    error = caught.value
    line = line_of('raise ValueError(f"bad value')
    assert error.node == "mine"
    assert str(error).startswith("mine (Custom, test_errors.py:")
    assert f"forward: ValueError: bad value (2, 3) (operators.py:{line})" in str(error)
    lines = error.detail["traceback"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "operators.py", line {line_of("deeper(in_data)")}, in forward'
    assert lines[2].strip() == "deeper(in_data)"
    assert lines[3] == f'  File "operators.py", line {line}, in deeper'
    assert lines[-1] == "ValueError: bad value (2, 3)"
    assert "opbox_service" not in error.detail["traceback"]
    assert "/" not in error.detail["traceback"]
    assert error.detail["traceback"] in "\n".join(error.__notes__)
    # The session goes on.
    run(bad())


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"how": "exit"}, "forward: SystemExit: 3 (operators.py:"),
        ({"how": "write"}, "forward: it writes to an input: expected inputs to be left as they are; write to the out"),
        ({"how": "add"}, "forward: it writes to an input"),
        ({"how": "part"}, "forward: it writes to an input"),
        ({"how": "shape"}, "forward: assignment: expected a value of shape (2, 3) or one that broadcasts to it, got"),
        (
            {"how": "return"},
            "forward: expected its results to be written into out_data, got NDArray returned, which not",
        ),
        ({"where": "one list"}, "infer_shape: expected two or three lists (inputs, outputs, auxiliary states), got 1"),
        ({"where": "too many"}, "infer_shape: outputs: expected 1 (output), got 2"),
        ({"where": "no shape"}, "infer_shape: output: expected a shape (a tuple of integers), got 'wide'"),
        ({"where": "infer_shape"}, "infer_shape: IndexError: list index out of range (operators.py:"),
        ({"where": "infer_type"}, "infer_type: output: expected a numpy type, got 'real'"),
        ({"where": "create_operator"}, "create_operator: expected a CustomOp to be returned, got str"),
    ],
)
def test_each_mistake_is_one_sentence(engine: str, kwargs: dict[str, str], says: str) -> None:
    with pytest.raises(errors.UserCodeError) as caught:
        run(bad(**kwargs))
    assert says in str(caught.value)
    assert str(caught.value).startswith("mine (Custom, test_errors.py:")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"how": "backward"}, "backward: KeyError: 'nothing here' (operators.py:"),
        ({"how": "grad"}, "backward: it writes to an input"),
        (
            {"how": "return grads"},
            "got list returned, which nothing reads: write self.assign(in_grad[0], req[0], value)",
        ),
        ({"where": "dependency"}, "declare_backward_dependency: expected some of the numbers it was given, got [99]"),
    ],
)
def test_mistakes_of_backward(engine: str, kwargs: dict[str, str], says: str) -> None:
    with pytest.raises(errors.UserCodeError) as caught:
        run(bad(**kwargs), backward=True)
    assert says in str(caught.value)
    assert caught.value.node in ("mine", "mine_backward")


def test_a_numpy_op_that_writes_to_its_input(engine: str) -> None:
    with pytest.raises(errors.UserCodeError, match=r"forward: it writes to an input.* \(operators.py:"):
        run(own.Overwriting()(data=mx.sym.Variable("data")))


def test_a_numpy_op_that_returns_its_output(engine: str) -> None:
    with pytest.raises(errors.UserCodeError, match=r"got ndarray returned.*: write out_data\[0\]\[:\] = value"):
        run(own.Returning()(data=mx.sym.Variable("data")))


def test_head_gradients_are_needed_where_they_are_read(engine: str) -> None:
    executor = bad().simple_bind(mx.cpu(), data=(2, 3))
    executor.forward(is_train=True)
    executor.backward()
    with pytest.raises(mx.MXNetError, match="head gradient of 'mine_output' is missing"):
        executor.grad_dict["data"].asnumpy()


def test_signatures_are_checked_at_register() -> None:
    class Short(mx.operator.CustomOp):
        def forward(self, in_data, out_data):
            pass

    global Wrong

    class Wrong(mx.operator.CustomOp):
        def backward(self, req, out_grad, in_data, out_data, in_grad):
            pass

    with pytest.raises(mx.MXNetError, match=r"infer_shape: expected to be called with 1 arguments"):

        @mx.operator.register("of_wrong_signature")
        class P(mx.operator.CustomOpProp):
            def infer_shape(self):
                pass

    with pytest.raises(mx.MXNetError, match=r"Wrong.backward: expected to be called with req, .*, in_grad, aux"):

        @mx.operator.register("of_wrong_signature")
        class Q(mx.operator.CustomOpProp):
            def create_operator(self, ctx, shapes, dtypes):
                return Wrong()

    with pytest.raises(mx.MXNetError, match=r"expected a subclass of mx\.operator\.CustomOpProp"):
        mx.operator.register("of_wrong_signature")(Short)
    with pytest.raises(mx.MXNetError, match=r"write @mx\.operator\.register"):
        mx.operator.register(Short)  # type: ignore[arg-type]  # the error that is tested
    assert "of_wrong_signature" not in mx.operator.get_all_registered_operators()


def test_a_name_that_nobody_registered() -> None:
    with pytest.raises(
        mx.MXNetError, match=r"op_type 'softmex' is not registered .*@mx.operator.register\('softmex'\)"
    ):
        mx.sym.Custom(mx.sym.Variable("data"), op_type="softmex")
    with pytest.raises(mx.MXNetError, match="op_type: expected the name of a registered operator, got None"):
        mx.sym.Custom(mx.sym.Variable("data"))


def test_arrays_are_made_where_the_operator_runs(engine: str) -> None:
    x = np.arange(6, dtype="float32").reshape(2, 3)
    net = mx.sym.Custom(mx.sym.Variable("data"), op_type="arrays_of_mine", name="a")
    [out] = net.eval(mx.cpu(), data=mx.nd.array(x))
    assert np.allclose(out.asnumpy(), x + 10)


class Arrays(mx.operator.CustomOp):
    """What mx.nd does inside an operator."""

    def forward(self, is_train, req, in_data, out_data, aux):
        x = in_data[0]
        assert x.context == mx.current_context() == mx.nd.zeros((1,)).context
        y = mx.nd.zeros(x.shape) + mx.nd.ones(x.shape) * 2
        y[:, 1] = 5
        y[0, 2] += 1
        y[1:2] = mx.nd.array([[7, 7, 7]])
        assert y.asnumpy().tolist() == [[2, 5, 3], [7, 7, 7]]
        copy = x.asnumpy()
        copy[:] = -1  # a copy: the input is not touched
        assert float(x[0, 1].asscalar()) == 1
        assert x.T.shape == (3, 2)
        assert mx.nd.dot(x, x.T).shape == (2, 2)
        assert mx.nd.concat(x, x, dim=0).reshape((-1,)).shape == (12,)
        assert mx.nd.random.uniform(shape=(4,)).asnumpy().max() < 1
        try:
            mx.nd.dot(x, x)
        except mx.MXNetError as error:
            said = str(error)
        assert "dot" in said
        try:
            x.reshape((6,))[0] = 3
        except mx.MXNetError as error:
            said = str(error)
        assert "writes to an input" in said
        out_data[0][:] = x
        out_data[0][:] += 10


@mx.operator.register("arrays_of_mine")
class ArraysProp(mx.operator.CustomOpProp):
    def create_operator(self, ctx, shapes, dtypes):
        assert ctx == mx.cpu()
        return Arrays()
