"""A posterior sampled by Langevin dynamics on synthetic data, in the manner of MXNet's example/bayesian-methods."""

import json

import mxnet as mx
import numpy as np

noise = np.random.RandomState(21)  # numbers that MXNet and others draw alike


@mx.optimizer.register
class DrawnSGLD(mx.optimizer.Optimizer):
    """SGLD with noise of this program."""

    def create_state(self, index, weight):
        return None

    def update(self, index, weight, grad, state):
        lr, wd = self._get_lr(index), self._get_wd(index)
        self._update_count(index)
        drawn = mx.nd.array(noise.normal(0, np.sqrt(lr), weight.shape), ctx=weight.context)
        weight[:] += -lr / 2 * (grad * self.rescale_grad + wd * weight) + drawn


class Polynomial(mx.lr_scheduler.LRScheduler):
    """The rate falls as a * (b + t) ** -gamma between two ends."""

    def __init__(self, begin_rate, end_rate, total, factor=0.55):
        super(Polynomial, self).__init__()
        self.b = (total - 1.0) / ((begin_rate / end_rate) ** (1.0 / factor) - 1.0)
        self.a = begin_rate / (self.b ** (-factor))
        self.factor = factor

    def __call__(self, num_update):
        self.base_lr = self.a * ((self.b + num_update) ** (-self.factor))
        return self.base_lr


def synthetic_grad(x, theta, sigma1, sigma2, sigmax, rescale_grad):
    """The gradient of the log posterior of a mixture of two normals with tied means (Welling and Teh, 2011)."""
    theta1, theta2 = theta.asnumpy()
    v1, v2, vx = sigma1**2, sigma2**2, sigmax**2
    first = np.exp(-((x - theta1) ** 2) / (2 * vx))
    second = np.exp(-((x - theta1 - theta2) ** 2) / (2 * vx))
    weight = first / (first + second)
    grad1 = -rescale_grad * (weight * (x - theta1) + (1 - weight) * (x - theta1 - theta2)).sum() / vx + theta1 / v1
    grad2 = -rescale_grad * ((1 - weight) * (x - theta1 - theta2)).sum() / vx + theta2 / v2
    return mx.nd.array([grad1, grad2])


rng = np.random.RandomState(20)
out = {}

# Two parameters and a gradient of the program's own.
x = np.where(rng.rand(100) < 0.5, 0, 1) + rng.randn(100) * np.sqrt(2)
theta = mx.nd.array([0.3, -0.5])
optimizer = mx.optimizer.create("drawnsgld", rescale_grad=1.0, wd=0.0, lr_scheduler=Polynomial(0.05, 0.01, 10))
updater = mx.optimizer.get_updater(optimizer)
samples = []
for step in range(8):
    grad = synthetic_grad(x[10 * step : 10 * step + 10], theta, np.sqrt(10), 1, np.sqrt(2), 10.0)
    updater("theta", grad, theta)
    samples.append(theta.asnumpy().tolist())
out["synthetic"] = [samples, optimizer.num_update, float(optimizer.learning_rate)]

# A regression of which the samples of the weights are averaged.
data = mx.symbol.Variable("data")
net = mx.symbol.FullyConnected(data=data, name="teacher_fc1", num_hidden=10)
net = mx.symbol.Activation(data=net, name="teacher_relu1", act_type="relu")
net = mx.symbol.FullyConnected(data=net, name="teacher_fc2", num_hidden=1)
net = mx.symbol.LinearRegressionOutput(data=net, label=mx.symbol.Variable("teacher_label"), name="teacher_output")
x = np.sort(rng.uniform(-2, 2, (20, 1)), axis=0).astype("float32")
y = (x**3 / 4 + 0.3 * rng.randn(20, 1)).astype("float32")
executor = net.simple_bind(ctx=mx.cpu(), data=(20, 1), teacher_label=(20, 1))
names = [name for name in net.list_arguments() if name not in ("data", "teacher_label")]
for name in names:
    executor.arg_dict[name][:] = np.random.RandomState(len(name)).uniform(-0.5, 0.5, executor.arg_dict[name].shape)
optimizer = DrawnSGLD(learning_rate=1e-3, rescale_grad=2.0, wd=1.0)
updater = mx.optimizer.get_updater(optimizer)
losses, mean = [], np.zeros((20, 1))
for step in range(10):
    executor.arg_dict["data"][:] = x
    executor.arg_dict["teacher_label"][:] = y
    executor.forward(is_train=True)
    executor.backward()
    losses.append(float(((executor.outputs[0].asnumpy() - y) ** 2).mean()))
    for index, name in enumerate(names):
        updater(index, executor.grad_dict[name], executor.arg_dict[name])
    if step >= 5:
        mean += executor.forward(is_train=False)[0].asnumpy() / 5
out["regression"] = {
    "arguments": net.list_arguments(),
    "losses": losses,
    "mean": mean.ravel()[::4].tolist(),
    "gradients": {name: float(np.abs(executor.grad_dict[name].asnumpy()).sum()) for name in names},
}
# The optimizer of MXNet itself: its numbers are random, so that only their spread is known.
weight = mx.nd.zeros((2000,))
mx.optimizer.get_updater(mx.optimizer.SGLD(learning_rate=0.04))(0, mx.nd.zeros((2000,)), weight)
out["spread"] = round(float(weight.asnumpy().std()), 1)
print(json.dumps(out))
