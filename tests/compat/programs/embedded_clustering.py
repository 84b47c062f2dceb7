"""Clusters learnt with the features, in the manner of MXNet's example/deep-embedded-clustering: a t kernel, KL."""

import json

import mxnet as mx
import numpy as np

CLUSTERS, FEATURES, BATCH = 3, 2, 30


def encoder():
    net = mx.sym.Variable("data")
    net = mx.sym.FullyConnected(net, num_hidden=8, name="encoder_0")
    net = mx.sym.Activation(net, act_type="relu", name="encoder_relu")
    return mx.sym.FullyConnected(net, num_hidden=FEATURES, name="encoder_1")


def dec_loss(alpha=1.0):
    """Soft assignments by Student's t of the distances to the centers, and their divergence from a target."""
    z = mx.sym.expand_dims(encoder(), axis=1)
    centers = mx.sym.Variable("dec_mu", shape=(CLUSTERS, FEATURES))
    difference = mx.sym.broadcast_sub(z, mx.sym.expand_dims(centers, axis=0))
    distance = mx.sym.sum(mx.sym.square(difference), axis=2)
    kernel = (1.0 + distance / alpha) ** (-(alpha + 1.0) / 2.0)
    q = mx.sym.broadcast_div(kernel, mx.sym.sum(kernel, axis=1, keepdims=True), name="q")
    p = mx.sym.Variable("target")
    divergence = mx.sym.sum(p * (mx.sym.log(p + 1e-10) - mx.sym.log(q)), axis=1)
    return mx.sym.Group([mx.sym.MakeLoss(mx.sym.mean(divergence), name="kl"), mx.sym.BlockGrad(q)])


def target_of(q):
    weight = q**2 / q.sum(axis=0)
    return weight / weight.sum(axis=1, keepdims=True)


def cluster_accuracy(predicted, truth):
    """The best match of clusters and classes, by trying every one of a few."""
    from itertools import permutations

    return max(float((np.array(order)[predicted] == truth).mean()) for order in permutations(range(CLUSTERS)))


rng = np.random.RandomState(34)
truth = rng.randint(0, CLUSTERS, BATCH)
x = (rng.randn(CLUSTERS, 6)[truth] * 2 + 0.5 * rng.randn(BATCH, 6)).astype("float32")
net = dec_loss()
shapes, outputs, _ = net.infer_shape(data=(BATCH, 6), target=(BATCH, CLUSTERS))
args = {
    name: mx.nd.array(np.random.RandomState(len(name)).uniform(-0.5, 0.5, shape))
    for name, shape in zip(net.list_arguments(), shapes)
}
args["data"][:] = x
learning = [name for name in net.list_arguments() if name not in ("data", "target")]

# Centers begin as the means of a rough split, by the features alone.
features = encoder()
executor = features.bind(mx.cpu(), {name: args[name] for name in features.list_arguments()})
z = executor.forward()[0].asnumpy()
centers = z[:CLUSTERS].copy()
for _ in range(3):
    nearest = ((z[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
    centers = np.stack([z[nearest == k].mean(axis=0) if (nearest == k).any() else centers[k] for k in range(CLUSTERS)])
args["dec_mu"][:] = centers

grads = {name: mx.nd.zeros(args[name].shape) for name in learning}
reqs = {name: "write" if name in learning else "null" for name in net.list_arguments()}
executor = net.bind(mx.cpu(), args, grads, reqs)
optimizer = mx.optimizer.SGD(learning_rate=0.5, momentum=0.9, param_idx2name=dict(enumerate(learning)))
optimizer.set_lr_mult({"dec_mu": 0.5})
updater = mx.optimizer.get_updater(optimizer)
steps = []
for step in range(8):
    if step % 4 == 0:  # a new target from time to time
        q = executor.forward(is_train=False)[1].asnumpy()
        args["target"][:] = target_of(q)
    loss, q = executor.forward(is_train=True)
    steps.append([float(loss.asscalar()), cluster_accuracy(q.asnumpy().argmax(axis=1), truth)])
    executor.backward()
    for index, name in enumerate(learning):
        updater(index, grads[name], args[name])
states = updater.get_states()
resumed = mx.optimizer.get_updater(optimizer)
resumed.set_states(states)
executor.forward(is_train=True)
executor.backward()
resumed(learning.index("dec_mu"), grads["dec_mu"], args["dec_mu"])
out = {
    "arguments": net.list_arguments(),
    "outputs": net.list_outputs(),
    "shapes": [shapes, outputs],
    "steps": steps,
    "centers": args["dec_mu"].asnumpy().tolist(),
    "gradient": grads["dec_mu"].asnumpy().tolist(),
    "norms": {name: float(grads[name].norm().asscalar()) for name in learning},
}
print(json.dumps(out))
