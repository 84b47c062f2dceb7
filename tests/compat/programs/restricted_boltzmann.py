"""A Boltzmann machine by operations on arrays, in the manner of MXNet's example/restricted-boltzmann-machine."""

import json

import mxnet as mx
import numpy as np

VISIBLE, HIDDEN, BATCH = 16, 6, 20

rng = np.random.RandomState(24)
patterns = rng.rand(4, VISIBLE) > 0.5
data = (patterns[rng.randint(0, 4, 5 * BATCH)] ^ (rng.rand(5 * BATCH, VISIBLE) > 0.95)).astype("float32")
uniforms = iter(rng.rand(100, BATCH, VISIBLE).astype("float32"))
weight = mx.nd.array(0.1 * rng.randn(HIDDEN, VISIBLE))
visible_bias, hidden_bias = mx.nd.zeros((VISIBLE,)), mx.nd.zeros((HIDDEN,))


def sample(probabilities):
    """0 and 1 of these probabilities, by numbers that numpy drew."""
    drawn = mx.nd.array(next(uniforms)[:, : probabilities.shape[1]])
    return drawn < probabilities


def hidden_of(v):
    return mx.nd.sigmoid(mx.nd.FullyConnected(v, weight, hidden_bias, num_hidden=HIDDEN))


def visible_of(h):
    return mx.nd.sigmoid(mx.nd.broadcast_add(mx.nd.dot(h, weight), visible_bias.reshape((1, -1))))


def free_energy(v):
    """-log of the unnormalised probability, of every row."""
    inside = mx.nd.dot(v, weight, transpose_b=True) + hidden_bias.expand_dims(0)
    return -mx.nd.dot(v, visible_bias) - mx.nd.sum(mx.nd.Activation(inside, act_type="softrelu"), axis=1)


steps = []
momentum = [mx.nd.zeros(array.shape) for array in (weight, visible_bias, hidden_bias)]
for begin in range(0, len(data), BATCH):
    v0 = mx.nd.array(data[begin : begin + BATCH])
    p0 = hidden_of(v0)
    h = sample(p0)
    for _ in range(2):  # two steps of contrastive divergence
        v = sample(visible_of(h))
        p = hidden_of(v)
        h = sample(p)
    grads = [
        (mx.nd.dot(p0, v0, transpose_a=True) - mx.nd.dot(p, v, transpose_a=True)) / BATCH,
        mx.nd.mean(v0 - v, axis=0),
        mx.nd.mean(p0 - p, axis=0),
    ]
    for array, grad, speed in zip((weight, visible_bias, hidden_bias), grads, momentum):
        speed *= 0.5
        speed += 0.3 * grad
        array += speed
    error = mx.nd.mean(mx.nd.square(v0 - visible_of(p0)))
    difference = mx.nd.mean(free_energy(v0)) - mx.nd.mean(free_energy(v))
    steps.append([float(error.asscalar()), float(difference.asscalar()), float(grads[0].norm().asscalar())])

# The likelihood by all hidden states, as this machine is small.
states = mx.nd.array([[index >> bit & 1 for bit in range(HIDDEN)] for index in range(2**HIDDEN)])
terms = mx.nd.dot(states, hidden_bias) + mx.nd.sum(
    mx.nd.log(1 + mx.nd.exp(mx.nd.broadcast_add(mx.nd.dot(states, weight), visible_bias.expand_dims(axis=0)))), axis=1
)
top = mx.nd.max(terms)
partition = mx.nd.log(mx.nd.sum(mx.nd.exp(mx.nd.broadcast_sub(terms, top)))) + top
v0 = mx.nd.array(data)
order = mx.nd.argsort(free_energy(v0), is_ascend=True)[:3]
mx.nd.save("rbm.params", [weight, visible_bias])
out = {
    "shapes": [list(array.shape) for array in mx.nd.load("rbm.params")],
    "steps": steps,
    "weights": weight.asnumpy()[:2].tolist(),
    "partition": float(partition.asscalar()),
    "likelihood": float((-free_energy(v0).mean() - partition).asscalar()),
    "best": mx.nd.take(v0, order).asnumpy().tolist(),
    "halves": [float(half.sum().asscalar()) for half in mx.nd.split(weight, num_outputs=2, axis=1)],
}
print(json.dumps(out))
