"""Ratings factorised by embeddings, in the manner of MXNet's example/recommenders: its own metric and iterator."""

import json

import mxnet as mx
import numpy as np

USERS, ITEMS, BATCH = 12, 9, 16


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.5, 0.5, arr.shape)


class Batch:
    def __init__(self, data, label, pad=0):
        self.data, self.label, self.pad = data, label, pad


class RatingsIter(mx.io.DataIter):
    """Batches of users, items and scores."""

    def __init__(self, ratings, batch_size):
        super(RatingsIter, self).__init__(batch_size)
        self.ratings = ratings
        self.position = 0
        self.provide_data = [("user", (batch_size,)), ("item", (batch_size,))]
        self.provide_label = [("score", (batch_size,))]

    def next(self):
        if self.position + self.batch_size > len(self.ratings):
            raise StopIteration
        rows = self.ratings[self.position : self.position + self.batch_size]
        self.position += self.batch_size
        user, item, score = (mx.nd.array(column) for column in rows.T)
        return Batch([user, item], [score])

    def reset(self):
        self.position = 0


def plain_net(k):
    user, item, score = mx.symbol.Variable("user"), mx.symbol.Variable("item"), mx.symbol.Variable("score")
    user = mx.symbol.Embedding(data=user, input_dim=USERS, output_dim=k, name="users")
    item = mx.symbol.Embedding(data=item, input_dim=ITEMS, output_dim=k, name="items")
    pred = mx.symbol.Flatten(data=mx.symbol.sum_axis(data=user * item, axis=1))
    return mx.symbol.LinearRegressionOutput(data=pred, label=score, name="lro")


def deep_net(k):
    user, item, score = mx.symbol.Variable("user"), mx.symbol.Variable("item"), mx.symbol.Variable("score")
    towers = []
    for name, data, size in (("users", user, USERS), ("items", item, ITEMS)):
        tower = mx.symbol.Embedding(data=data, input_dim=size, output_dim=k, name=name)
        tower = mx.symbol.FullyConnected(mx.symbol.Activation(tower, act_type="relu"), num_hidden=k, name=name + "_fc")
        towers.append(tower)
    pred = mx.symbol.Flatten(data=mx.symbol.sum(towers[0] * towers[1], axis=1))
    return mx.symbol.LinearRegressionOutput(data=pred, label=score, name="lro")


def rmse(label, pred):
    return float(np.sqrt(np.mean((label - pred.flatten()) ** 2)))


rng = np.random.RandomState(6)
left, right = rng.randn(USERS, 2), rng.randn(ITEMS, 2)
users, items = rng.randint(0, USERS, 5 * BATCH), rng.randint(0, ITEMS, 5 * BATCH)
ratings = np.stack([users, items, 3 + (left[users] * right[items]).sum(1)], axis=1).astype("float32")
out = {}
for label, net in (("plain", plain_net(4)), ("deep", deep_net(6))):
    seen = []
    module = mx.mod.Module(net, context=mx.cpu(), data_names=["user", "item"], label_names=["score"])
    module.fit(
        RatingsIter(ratings, BATCH),
        eval_data=RatingsIter(ratings[::2], BATCH),
        eval_metric=mx.metric.np(rmse),
        optimizer="sgd" if label == "plain" else "adam",
        optimizer_params={"learning_rate": 0.05, "wd": 1e-4},
        initializer=ByShape(),
        num_epoch=2,
        batch_end_callback=lambda param: seen.append(float(param.eval_metric.get()[1])),
    )
    params = module.get_params()[0]
    out[label] = {
        "arguments": net.list_arguments(),
        "shapes": net.infer_shape(user=(BATCH,), item=(BATCH,)),
        "seen": seen,
        "users": params["users_weight"].asnumpy()[:3].tolist(),
        "predicted": module.predict(RatingsIter(ratings, BATCH)).asnumpy().ravel()[:8].tolist(),
        "score": module.score(RatingsIter(ratings, BATCH), ["mse", "mae"]),
    }
print(json.dumps(out))
