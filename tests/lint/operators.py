"""Operators, each wrong in one way that its name tells; the first ones are right."""

import numpy as np

import opbox as mx


class Scale(mx.operator.CustomOp):
    """y = 2 x."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


class Prop(mx.operator.CustomOpProp):
    op = Scale

    def create_operator(self, ctx, shapes, dtypes):
        return self.op()


@mx.operator.register("right")
class Right(Prop):
    lint_cases = [{"data": (3, 4)}, {"data": (2, 3, 4)}]


class Average(Scale):
    """Keeps a moving average of its input's mean."""

    def forward(self, is_train, req, in_data, out_data, aux):
        if is_train:
            aux[0][:] = 0.9 * aux[0] + 0.1 * in_data[0].mean()
        self.assign(out_data[0], req[0], in_data[0] * 2)


@mx.operator.register("right_state")
class RightState(Prop):
    op = Average

    def list_auxiliary_states(self):
        return ["mean"]

    def infer_shape(self, in_shape):
        return in_shape, [in_shape[0]], [(1,)]


class WrongGradient(Scale):
    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 3)


class IgnoresAdd(Scale):
    def forward(self, is_train, req, in_data, out_data, aux):
        out_data[0][:] = in_data[0] * 2


class Unwritten(Scale):
    def forward(self, is_train, req, in_data, out_data, aux):
        y = in_data[0] * 2  # noqa: F841


class GradientUnwritten(Scale):
    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        pass


class Random(Scale):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 2 + mx.nd.array(np.random.rand(*in_data[0].shape)) * 1e-5)


class WritesToInput(Scale):
    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        in_data[0][:] = 0
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


class NeedsTwo(Scale):
    def forward(self, is_train, req, in_data, out_data, aux):
        if in_data[0].shape[0] < 2:
            raise ValueError("a batch of one is too small")
        super().forward(is_train, req, in_data, out_data, aux)


class Divides(Scale):
    def forward(self, is_train, req, in_data, out_data, aux):
        x = in_data[0].asnumpy()
        self.assign(out_data[0], req[0], mx.nd.array(x * (2 * x.shape[0] // x.shape[0])))


class LearnsAtInference(Average):
    def forward(self, is_train, req, in_data, out_data, aux):
        aux[0][:] = aux[0] + 1
        self.assign(out_data[0], req[0], in_data[0] * 2)


class Coarse(Scale):
    def forward(self, is_train, req, in_data, out_data, aux):
        x = in_data[0].asnumpy()
        factor = 3 if x.dtype == np.float16 else 2
        self.assign(out_data[0], req[0], mx.nd.array(x * factor, dtype=x.dtype))


@mx.operator.register("gradient")
class GradientProp(Prop):
    op = WrongGradient


@mx.operator.register("requests")
class RequestsProp(Prop):
    op = IgnoresAdd


@mx.operator.register("shapes")
class ShapesProp(Prop):
    op = Unwritten


@mx.operator.register("requests of gradients")
class GradientRequestsProp(Prop):
    op = GradientUnwritten


@mx.operator.register("determinism")
class DeterminismProp(Prop):
    op = Random


@mx.operator.register("inputs kept")
class InputsProp(Prop):
    op = WritesToInput


@mx.operator.register("batch 1")
class BatchOneProp(Prop):
    op = NeedsTwo


@mx.operator.register("batch 0")
class BatchZeroProp(Prop):
    op = Divides


@mx.operator.register("states")
class StatesProp(RightState):
    op = LearnsAtInference


@mx.operator.register("types")
class TypesProp(Prop):
    op = Coarse


class Tile(mx.operator.NumpyOp):
    """Right: repeats along a new last axis."""

    lint_cases = [{"data": (2, 3), "params": {"tiles": 4}}]

    def __init__(self, tiles):
        super().__init__(True)
        self.tiles = tiles

    def infer_shape(self, in_shape):
        return in_shape, [[*in_shape[0], self.tiles]]

    def forward(self, in_data, out_data):
        out_data[0][:] = np.repeat(in_data[0][..., None], self.tiles, axis=-1)

    def backward(self, out_grad, in_data, out_data, in_grad):
        in_grad[0][:] = out_grad[0].sum(axis=-1)


class ReadsMemory(mx.operator.NumpyOp):
    """Takes the order of the elements in memory for that of the array."""

    def forward(self, in_data, out_data):
        out_data[0][:] = in_data[0].ravel("K").reshape(in_data[0].shape)

    def backward(self, out_grad, in_data, out_data, in_grad):
        in_grad[0][:] = out_grad[0]


class Nameless(mx.operator.NumpyOp):
    """Cannot be made without being told how."""

    def __init__(self, must_be_given):
        super().__init__(True)


class Choosy(mx.operator.NumpyOp):
    """Takes none of the usual shapes."""

    def infer_shape(self, in_shape):
        if list(in_shape[0]) != [7, 11]:
            raise ValueError("expected (7, 11)")
        return in_shape, [in_shape[0]]


instance = Tile(3)
