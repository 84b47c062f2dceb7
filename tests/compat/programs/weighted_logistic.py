"""Custom operators with weights and a state, in the manner of example/numpy-ops/weighted_logistic_regression.py."""

import json

import mxnet as mx
import numpy as np


class WeightedLogisticRegression(mx.operator.CustomOp):
    def __init__(self, pos_grad_scale, neg_grad_scale):
        self.pos_grad_scale = float(pos_grad_scale)
        self.neg_grad_scale = float(neg_grad_scale)

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], mx.nd.divide(1, (1 + mx.nd.exp(-in_data[0]))))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        positive = in_data[1] * self.pos_grad_scale * (out_data[0] - 1)
        negative = (1 - in_data[1]) * self.neg_grad_scale * out_data[0]
        self.assign(in_grad[0], req[0], (positive + negative) / out_data[0].shape[1])


@mx.operator.register("weighted_logistic_regression")
class WeightedLogisticRegressionProp(mx.operator.CustomOpProp):
    def __init__(self, pos_grad_scale, neg_grad_scale):
        self.pos_grad_scale = pos_grad_scale
        self.neg_grad_scale = neg_grad_scale
        super(WeightedLogisticRegressionProp, self).__init__(False)

    def list_arguments(self):
        return ["data", "label"]

    def list_outputs(self):
        return ["output"]

    def infer_shape(self, in_shape):
        return [in_shape[0], in_shape[0]], [in_shape[0]], []

    def create_operator(self, ctx, shapes, dtypes):
        return WeightedLogisticRegression(self.pos_grad_scale, self.neg_grad_scale)


class RunningCenter(mx.operator.CustomOp):
    """Subtracts a mean that training batches move."""

    def forward(self, is_train, req, in_data, out_data, aux):
        if is_train:
            aux[0][:] = 0.5 * aux[0] + 0.5 * mx.nd.mean(in_data[0], axis=0)
            aux[1][:] = aux[1] + 1
        self.assign(out_data[0], req[0], mx.nd.broadcast_sub(in_data[0], aux[0].expand_dims(0)))

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0])


@mx.operator.register("running_center")
class RunningCenterProp(mx.operator.CustomOpProp):
    def __init__(self):
        super(RunningCenterProp, self).__init__(need_top_grad=True)

    def list_auxiliary_states(self):
        return ["center", "batches"]

    def infer_shape(self, in_shape):
        return in_shape, [in_shape[0]], [(in_shape[0][1],), (1,)]

    def create_operator(self, ctx, shapes, dtypes):
        return RunningCenter()


m, n = 6, 4
data, label = mx.sym.Variable("data"), mx.sym.Variable("wlr_label")
out = {}

# The operator by itself beside the one that it replaces.
rng = np.random.RandomState(33)
x, y = rng.randn(m, n).astype("float32"), (rng.rand(m, n) > 0.5).astype("float32")
plain = mx.sym.LogisticRegressionOutput(data=data, label=label, name="wlr")
weighted = mx.sym.Custom(
    pos_grad_scale=2, neg_grad_scale=0.5, data=data, label=label, name="wlr", op_type="weighted_logistic_regression"
)
for name, net in (("plain", plain), ("weighted", weighted)):
    executor = net.simple_bind(mx.cpu(), data=(m, n), wlr_label=(m, n), grad_req={"data": "write", "wlr_label": "null"})
    executor.arg_dict["data"][:] = x
    executor.arg_dict["wlr_label"][:] = y
    executor.forward(is_train=True)
    executor.backward()
    out[name] = [executor.outputs[0].asnumpy().tolist(), executor.grad_dict["data"].asnumpy().tolist()]

# Both operators in a network that a module trains.
net = mx.sym.Custom(data=data, name="rc", op_type="running_center")
net = mx.sym.FullyConnected(net, num_hidden=2, name="fc")
net = mx.sym.Custom(
    pos_grad_scale=3.0, neg_grad_scale=1.0, data=net, label=label, name="wlr", op_type="weighted_logistic_regression"
)
x = (1 + rng.randn(40, n)).astype("float32")
y = (x[:, :2] > 1.5).astype("float32")
train = mx.io.NDArrayIter({"data": x}, {"wlr_label": y}, 8)
module = mx.mod.Module(net, label_names=["wlr_label"], context=mx.cpu())
module.bind(train.provide_data, train.provide_label)
start = {"fc_weight": mx.nd.array(rng.uniform(-1, 1, (2, n))), "fc_bias": mx.nd.zeros((2,))}
states = {"rc_center": mx.nd.zeros((n,)), "rc_batches": mx.nd.zeros((1,))}
module.init_params(arg_params=start, aux_params=states)
module.init_optimizer(optimizer="signum", optimizer_params={"learning_rate": 0.05, "momentum": 0.9})
losses = []
for batch in train:
    module.forward_backward(batch)
    p, t = module.get_outputs()[0].asnumpy(), batch.label[0].asnumpy()
    losses.append(float(-(3 * t * np.log(p) + (1 - t) * np.log(1 - p)).mean()))
    module.update()
args, aux = module.get_params()
out["trained"] = {
    "names": [net.list_arguments(), net.list_auxiliary_states(), net.list_outputs()],
    "shapes": net.infer_shape(data=(8, n)),
    "losses": losses,
    "args": {name: value.asnumpy().tolist() for name, value in sorted(args.items())},
    "aux": {name: value.asnumpy().tolist() for name, value in sorted(aux.items())},
    "predicted": module.predict(train).asnumpy()[:3].tolist(),
}
print(json.dumps(out))
