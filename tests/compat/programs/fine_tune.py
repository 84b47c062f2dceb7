"""A saved network with a new head, in the manner of MXNet's example/image-classification/fine-tune.py."""

import json

import mxnet as mx
import numpy as np

BATCH = 10


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.4, 0.4, arr.shape)


def pretrained_network():
    net = mx.sym.Variable("data")
    net = mx.sym.Convolution(net, kernel=(3, 3), num_filter=4, name="conv1")
    net = mx.sym.BatchNorm(net, fix_gamma=False, name="bn1")
    net = mx.sym.Activation(net, act_type="relu", name="relu1")
    net = mx.sym.Flatten(mx.sym.Pooling(net, kernel=(2, 2), stride=(2, 2), pool_type="avg"), name="flatten0")
    net = mx.sym.FullyConnected(net, num_hidden=8, name="fc1")
    return mx.sym.SoftmaxOutput(net, name="softmax")


def get_fine_tune_model(symbol, arg_params, num_classes, layer_name):
    net = symbol.get_internals()[layer_name + "_output"]
    net = mx.symbol.FullyConnected(data=net, num_hidden=num_classes, name="fc", lr_mult=10)
    net = mx.symbol.SoftmaxOutput(data=net, name="softmax")
    return net, {key: value for key, value in arg_params.items() if "fc" not in key}


def fit(net, train, **arguments):
    seen = []
    module = mx.mod.Module(net, context=mx.cpu(), fixed_param_names=arguments.pop("fixed", None))
    module.fit(
        train,
        eval_metric="ce",
        num_epoch=1,
        initializer=ByShape(),
        batch_end_callback=lambda param: seen.append(float(param.eval_metric.get()[1])),
        **arguments,
    )
    return module, seen


def sums(params):
    return {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(params.items())}


rng = np.random.RandomState(32)
prototypes = rng.rand(8, 1, 6, 6)
y = rng.randint(0, 8, 5 * BATCH)
x = (prototypes[y] + 0.2 * rng.randn(5 * BATCH, 1, 6, 6)).astype("float32")
module, seen = fit(
    pretrained_network(), mx.io.NDArrayIter(x, y, BATCH), optimizer_params={"learning_rate": 0.1, "momentum": 0.9}
)
module.save_checkpoint("pretrained", 1, save_optimizer_states=True)
out = {"pretrained": seen}

loaded, arg_params, aux_params = mx.model.load_checkpoint("pretrained", 1)
net, backbone = get_fine_tune_model(loaded, arg_params, 2, "flatten0")
train = mx.io.NDArrayIter(x, y % 2, BATCH)
out["internals"] = loaded.get_internals().list_outputs()
out["arguments"] = net.list_arguments()
out["multipliers"] = {name: attrs for name, attrs in sorted(net.attr_dict().items()) if "__lr_mult__" in attrs}
for label, fixed in (("all", None), ("head", ["conv1_weight", "conv1_bias", "bn1_gamma", "bn1_beta"])):
    module, seen = fit(
        net,
        train,
        fixed=fixed,
        arg_params=backbone,
        aux_params=aux_params,
        allow_missing=True,
        optimizer_params={"learning_rate": 0.02, "wd": 1e-3},
    )
    args, aux = module.get_params()
    unchanged = sorted(name for name in backbone if (backbone[name].asnumpy() == args[name].asnumpy()).all())
    out[label] = {"seen": seen, "args": sums(args), "aux": sums(aux), "unchanged": unchanged}
    train.reset()

# Features of the layer under the head, of a module that shares nothing but the parameters.
extractor = mx.mod.Module(loaded.get_internals()["flatten0_output"], label_names=None, context=mx.cpu())
extractor.bind(data_shapes=[("data", (BATCH, 1, 6, 6))], for_training=False)
extractor.set_params(arg_params, aux_params, allow_extra=True)
features = extractor.predict(mx.io.NDArrayIter(x, batch_size=BATCH))
out["features"] = [list(features.shape), features.asnumpy()[0, :6].tolist()]

# Training goes on where it was left, with its momentum.
again = mx.mod.Module.load("pretrained", 1, load_optimizer_states=True, context=mx.cpu())
again.bind([("data", (BATCH, 1, 6, 6))], [("softmax_label", (BATCH,))])
again.init_params()
again.init_optimizer(optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
batch = mx.io.DataBatch([mx.nd.array(x[:BATCH])], [mx.nd.array(y[:BATCH])])
for _ in range(2):
    again.forward_backward(batch)
    again.update()
out["resumed"] = sums(again.get_params()[0])
print(json.dumps(out))
