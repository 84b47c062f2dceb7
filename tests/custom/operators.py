"""Operators of the tests: what a user might write, each for one thing that the forms promise."""

import numpy as np

import opbox as mx

COUNT = {"made": 0}


class Recording(mx.operator.CustomOp):
    """out = 2 * data; what it was called with is kept in the auxiliary state."""

    def __init__(self):
        self.calls = 0

    def forward(self, is_train, req, in_data, out_data, aux):
        self.calls += 1
        self.assign(out_data[0], req[0], in_data[0] * 2)
        aux[0][:] = np.array([self.calls, int(is_train), 0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * 2)
        aux[0][2] = self.calls


@mx.operator.register("recording")
class RecordingProp(mx.operator.CustomOpProp):
    def list_auxiliary_states(self):
        return ["calls"]

    def infer_shape(self, in_shape):
        return in_shape, [in_shape[0]], [(3,)]

    def create_operator(self, ctx, shapes, dtypes):
        return Recording()


class Square(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], 2 * in_data[0] * out_grad[0])


@mx.operator.register("square_of_mine")
class SquareProp(mx.operator.CustomOpProp):
    """Two lists will do where there are no auxiliary states."""

    def infer_shape(self, in_shape):
        return in_shape, [in_shape[0]]

    def create_operator(self, ctx, shapes, dtypes):
        return Square()


class Power(mx.operator.CustomOp):
    def __init__(self, exponent, kinds):
        self.exponent = exponent
        self.kinds = kinds

    def forward(self, is_train, req, in_data, out_data, aux):
        out_data[0][:] = in_data[0].asnumpy() ** self.exponent

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], self.exponent * out_grad[0] * in_data[0] ** (self.exponent - 1))


@mx.operator.register("power_of_mine")
class PowerProp(mx.operator.CustomOpProp):
    """exponent arrives as a string, scale as the number that its annotation asks for."""

    def __init__(self, exponent="2", scale: float = 1.0, axes: tuple = (), keep: bool = False):
        super().__init__()
        assert isinstance(exponent, str)
        assert isinstance(scale, float)
        assert isinstance(axes, tuple)
        assert isinstance(keep, bool)
        self.exponent = int(exponent) * scale

    def create_operator(self, ctx, shapes, dtypes):
        return Power(self.exponent, dtypes)


class Mixed(mx.operator.CustomOp):
    """Two inputs of two types, two states of two types, two outputs of two types."""

    def forward(self, is_train, req, in_data, out_data, aux):
        data, index = in_data
        self.assign(out_data[0], req[0], data + 1)
        self.assign(out_data[1], req[1], index.astype("int32") * 2)
        aux[0][:] += 1
        aux[1][:] = aux[1] + index.size

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0])
        self.assign(in_grad[1], req[1], mx.nd.zeros(in_data[1].shape, dtype="uint8"))


@mx.operator.register("mixed")
class MixedProp(mx.operator.CustomOpProp):
    def list_arguments(self):
        return ["data", "index"]

    def list_outputs(self):
        return ["sum", "twice"]

    def list_auxiliary_states(self):
        return ["runs", "seen"]

    def infer_shape(self, in_shape):
        return [in_shape[0], (4,)], [in_shape[0], (4,)], [(1,), (2,)]

    def infer_type(self, in_type):
        return [in_type[0], np.uint8], [in_type[0], np.int32], [np.float64, np.int32]

    def create_operator(self, ctx, shapes, dtypes):
        assert shapes == [[2, 3], [4], [1], [2]]
        assert dtypes[1] is np.uint8
        return Mixed()


class Ones(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], mx.nd.ones((2, 2)))


@mx.operator.register("ones_of_mine")
class OnesProp(mx.operator.CustomOpProp):
    """No inputs."""

    def list_arguments(self):
        return []

    def infer_shape(self, in_shape):
        return [], [(2, 2)], []

    def create_operator(self, ctx, shapes, dtypes):
        return Ones()


class Frugal(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] * 3)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        if self.reads == "in_data":
            in_data[0].asnumpy()
        self.assign(in_grad[0], req[0], out_grad[0] * 3)


@mx.operator.register("frugal")
class FrugalProp(mx.operator.CustomOpProp):
    """Backward reads the gradient of the output alone."""

    def __init__(self, reads=""):
        super().__init__()
        self.reads = reads

    def declare_backward_dependency(self, out_grad, in_data, out_data):
        return out_grad

    def create_operator(self, ctx, shapes, dtypes):
        operator = Frugal()
        operator.reads = self.reads
        return operator


class Bad(mx.operator.CustomOp):
    """Does what `how` says."""

    def __init__(self, how):
        self.how = how

    def forward(self, is_train, req, in_data, out_data, aux):
        if self.how == "raise":
            deeper(in_data)
        elif self.how == "exit":
            raise SystemExit(3)
        elif self.how == "write":
            in_data[0][:] = 0
        elif self.how == "add":
            in_data[0] += 1
        elif self.how == "part":
            in_data[0][0] = 1
        elif self.how == "shape":
            out_data[0][:] = mx.nd.ones((7, 7))
        elif self.how == "return":
            return in_data[0] * 2
        self.assign(out_data[0], req[0], in_data[0])
        return None

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        if self.how == "backward":
            raise KeyError("nothing here")
        if self.how == "grad":
            out_grad[0][:] = 0
        if self.how == "return grads":
            return [out_grad[0]]
        self.assign(in_grad[0], req[0], out_grad[0])
        return None


def deeper(in_data):
    """One frame more."""
    raise ValueError(f"bad value {in_data[0].shape}")


@mx.operator.register("bad")
class BadProp(mx.operator.CustomOpProp):
    def __init__(self, how="", where=""):
        super().__init__()
        self.how = how
        self.where = where
        if where == "constructor" and how == "engine":
            raise ValueError("no such engine")

    def infer_shape(self, in_shape):
        if self.where == "one list":
            return in_shape
        if self.where == "too many":
            return in_shape, [in_shape[0]] * 2, []
        if self.where == "no shape":
            return in_shape, ["wide"], []
        if self.where == "infer_shape":
            return in_shape, [in_shape[3]], []
        return super().infer_shape(in_shape)

    def infer_type(self, in_type):
        if self.where == "infer_type":
            return in_type, ["real"], []
        return super().infer_type(in_type)

    def declare_backward_dependency(self, out_grad, in_data, out_data):
        if self.where == "dependency":
            return [99]
        return super().declare_backward_dependency(out_grad, in_data, out_data)

    def create_operator(self, ctx, shapes, dtypes):
        if self.where == "create_operator":
            return "an operator"
        return Bad(self.how)


class Tile(mx.operator.NumpyOp):
    """The input `tiles` times along a new last axis."""

    def __init__(self, tiles, scale=1):
        super().__init__(True)
        self.tiles = tiles
        self.scale = scale
        self.table = np.ones(3)

    def infer_shape(self, in_shape):
        return [in_shape[0]], [in_shape[0] + [self.tiles]]

    def forward(self, in_data, out_data):
        assert type(in_data[0]) is np.ndarray
        out_data[0][:] = in_data[0][..., None] * self.scale

    def backward(self, out_grad, in_data, out_data, in_grad):
        in_grad[0][:] = out_grad[0].sum(axis=-1) * self.scale


class ArraySoftmax(mx.operator.NDArrayOp):
    """A loss on NDArrays."""

    def __init__(self):
        super().__init__(False)

    def list_arguments(self):
        return ["data", "label"]

    def infer_shape(self, in_shape):
        return [in_shape[0], (in_shape[0][0],)], [in_shape[0]]

    def forward(self, in_data, out_data):
        out_data[0][:] = mx.nd.softmax(in_data[0], axis=1)

    def backward(self, out_grad, in_data, out_data, in_grad):
        assert out_grad == []
        in_grad[0][:] = out_data[0] - mx.nd.one_hot(in_data[1], depth=out_data[0].shape[1])


class Overwriting(mx.operator.NumpyOp):
    """Writes to its input."""

    def forward(self, in_data, out_data):
        in_data[0][:] = 0

    def backward(self, out_grad, in_data, out_data, in_grad):
        out_grad[0] *= 2


class Returning(mx.operator.NumpyOp):
    """Returns what it should have written."""

    def forward(self, in_data, out_data):
        return in_data[0] * 2
