"""Right operators of kinds that are easily taken for wrong ones."""

import numpy as np

import opbox as mx


class Prop(mx.operator.CustomOpProp):
    op = mx.operator.CustomOp

    def create_operator(self, ctx, shapes, dtypes):
        return self.op()


class Successor(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0] + 1)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], mx.nd.zeros_like(in_grad[0]))


@mx.operator.register("of integers")
class SuccessorProp(Prop):
    op = Successor
    lint_cases = [{"data": (3, 4), "types": {"data": "int32"}}]

    def infer_type(self, in_type):
        if in_type[0] not in (None, np.int32):
            raise TypeError("expected int32")
        return [np.int32], [np.int32], []


class Embedding(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        rows = in_data[1].asnumpy()[in_data[0].asnumpy()]
        self.assign(out_data[0], req[0], mx.nd.array(rows, dtype=rows.dtype))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        grad = np.zeros(in_grad[1].shape, out_grad[0].dtype)
        np.add.at(grad, in_data[0].asnumpy(), out_grad[0].asnumpy())
        self.assign(in_grad[0], req[0], mx.nd.zeros_like(in_grad[0]))
        self.assign(in_grad[1], req[1], mx.nd.array(grad, dtype=grad.dtype))


@mx.operator.register("of one integer input")
class EmbeddingProp(Prop):
    op = Embedding
    lint_cases = [{"ids": [[1, 2], [0, 1]], "table": (4, 3)}]

    def list_arguments(self):
        return ["ids", "table"]

    def infer_shape(self, in_shape):
        return [in_shape[0], (4, 3)], [[*in_shape[0], 3]], []

    def infer_type(self, in_type):
        dtype = in_type[1] or np.float32
        return [np.int32, dtype], [dtype], []


class Best(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], mx.nd.argmax(in_data[0], axis=1))


@mx.operator.register("without backward")
class BestProp(Prop):
    op = Best

    def infer_shape(self, in_shape):
        return in_shape, [in_shape[0][:1]], []


class Mask(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        shape = [max(1, d) for d in in_data[0].shape]
        self.mask = mx.nd.random.uniform(shape=shape)[: in_data[0].shape[0]].astype(in_data[0].dtype) > 0.5
        self.assign(out_data[0], req[0], in_data[0] * self.mask if is_train else in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * self.mask)


@mx.operator.register("random")
class MaskProp(Prop):
    op = Mask


class FloatMask(mx.operator.CustomOp):
    """mx.nd.array of a numpy array is float32, so backward knows no other type."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.positive = mx.nd.array(in_data[0].asnumpy() > 0)
        self.assign(out_data[0], req[0], mx.nd.array(np.maximum(in_data[0].asnumpy(), 0)))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * self.positive)


@mx.operator.register("backward in float32 only")
class FloatMaskProp(Prop):
    op = FloatMask


class Reciprocal(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], 1 / in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], -out_grad[0] / in_data[0] ** 2)


@mx.operator.register("steep")
class ReciprocalProp(Prop):
    op = Reciprocal


class Clip(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], mx.nd.clip(in_data[0], -0.5, 0.5))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * (in_data[0] > -0.5) * (in_data[0] < 0.5))


@mx.operator.register("kinks next to a value")
class ClipProp(Prop):
    op = Clip
    lint_cases = [{"data": [[0.499, 0.503, 0.4], [-0.499, -0.503, 1.0]]}]


class Annealed(mx.operator.CustomOp):
    factor = 1.0

    def forward(self, is_train, req, in_data, out_data, aux):
        self.factor *= 0.5
        self.assign(out_data[0], req[0], in_data[0] * self.factor)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * self.factor)


@mx.operator.register("keeps a count on purpose")
class AnnealedProp(Prop):
    op = Annealed
    lint_cases = [{"data": (3, 4), "keeps": True, "gradient": False}]


class Constant(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], mx.nd.arange(6).reshape((2, 3)))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        pass


@mx.operator.register("no inputs")
class ConstantProp(Prop):
    op = Constant

    def list_arguments(self):
        return []

    def infer_shape(self, in_shape):
        return [], [(2, 3)], []

    def infer_type(self, in_type):
        return [], [np.float32], []


class SquaredError(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], (in_data[0] - in_data[1]) / 4)


@mx.operator.register("a loss, averaged")
class SquaredErrorProp(Prop):
    op = SquaredError

    def __init__(self):
        super().__init__(need_top_grad=False)

    def list_arguments(self):
        return ["data", "label"]

    def infer_shape(self, in_shape):
        return [in_shape[0], in_shape[0]], [in_shape[0]], []
