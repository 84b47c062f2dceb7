"""Trainings on several devices, for MXNet 1.9.1 and opbox alike; as a program it records what MXNet computes.

python tests/training/several_devices.py        (an interpreter with mxnet==1.9.1, numpy==1.23.5)
"""

import json
import os
import warnings

import numpy as np

RECORDED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "several_devices.json")

CASES = {
    "local": {"devices": 2, "kvstore": "local", "optimizer": "sgd"},
    "device": {"devices": 3, "kvstore": "device", "optimizer": "adam", "work_load_list": [1, 2, 1]},
    "nothing exchanged": {"devices": 2, "kvstore": None, "optimizer": "sgd"},
    "not on the store": {"devices": 2, "kvstore": "device", "optimizer": "adam", "on_store": False},
    "a store for one": {"devices": 1, "kvstore": "object", "optimizer": "sgd"},
}


def network(mx):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=5, no_bias=True, name="fc1")
    net = mx.sym.Activation(mx.sym.BatchNorm(net, fix_gamma=False, name="bn"), act_type="tanh")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(net, num_hidden=3, name="fc2"), name="softmax")


def arrays(mx, rng, **shapes):
    return {name: mx.nd.array(rng.uniform(-1, 1, shape)) for name, shape in shapes.items()}


def trained(mx, devices, kvstore, optimizer, work_load_list=None, on_store=True, kind="cpu"):
    """What a training computes in two epochs on devices of a kind."""
    os.environ["MXNET_UPDATE_ON_KVSTORE"] = "1" if on_store else "0"
    rng = np.random.RandomState(0)
    data, label = rng.uniform(-1, 1, (21, 4)).astype("f"), rng.randint(0, 3, 21).astype("f")
    params = arrays(mx, rng, fc1_weight=(5, 4), bn_gamma=(5,), bn_beta=(5,), fc2_weight=(3, 5), fc2_bias=(3,))
    states = {"bn_moving_mean": mx.nd.zeros((5,)), "bn_moving_var": mx.nd.ones((5,))}
    batches = mx.io.NDArrayIter(data, label, 7)
    contexts = [mx.Context(kind, i) for i in range(devices)]
    mod = mx.mod.Module(network(mx), context=contexts, work_load_list=work_load_list)
    mod.bind(batches.provide_data, batches.provide_label, inputs_need_grad=True)
    mod.init_params(None, params, states)
    store = mx.kv.create("local") if kvstore == "object" else kvstore
    options = {"learning_rate": 0.1, "wd": 0.01}
    mod.init_optimizer(store, optimizer, options if optimizer == "adam" else dict(options, momentum=0.9))
    metric = mx.metric.create(["acc", "ce"])
    for _ in range(2):
        batches.reset()
        for batch in batches:
            mod.forward_backward(batch)
            mod.update()
            mod.update_metric(metric, batch.label)
    group = mod._exec_group
    args, aux = mod.get_params()
    lists = [*group.param_arrays, *group.grad_arrays, *group.aux_arrays, *mod.get_outputs(False)]
    texts = {
        "slices": str(group.slices),
        "arrays": [[f"{one.shape} {one.context}" for one in listed] for listed in lists],
        "fed": [f"{part} {one.shape}" for part, one in group.data_arrays[0]],
        "outputs": str([(name, tuple(shape)) for name, shape in mod.output_shapes]),
        "store": str((mod._kvstore.type if mod._kvstore else None, mod._update_on_kvstore)),
        "contexts": sorted({str(value.context) for value in args.values()}),
        "indices": sorted(mod._optimizer.idx2name.items()),
    }
    numbers = {name: value.asnumpy().tolist() for name, value in sorted(args.items()) + sorted(aux.items())}
    numbers["metric"] = list(metric.get()[1])
    numbers["output"] = mod.get_outputs()[0].asnumpy().tolist()
    numbers["input gradient"] = mod.get_input_grads()[0].asnumpy().tolist()
    numbers["predicted"] = mod.predict(mx.io.NDArrayIter(data, label, 7)).asnumpy().tolist()
    mod.forward(mx.io.DataBatch([mx.nd.array(data[:5])], [mx.nd.array(label[:5])]), is_train=False)
    numbers["smaller batch"] = mod.get_outputs()[0].asnumpy().tolist()
    return {"texts": texts, "numbers": numbers}


def with_states(mx):
    """A module whose batch axis is the second, with a state between batches, on two devices."""
    rng = np.random.RandomState(1)
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, flatten=False, name="fc")
    net = net + mx.sym.Variable("before")
    net = mx.sym.LinearRegressionOutput(net, mx.sym.Variable("label"), name="out", attr={"__layout__": "TNC"})
    describe = mx.io.DataDesc
    mod = mx.mod.Module(net, ["data"], ["label"], context=[mx.cpu(0), mx.cpu(1)], state_names=["before"])
    mod.bind(
        [describe("data", (3, 5, 4), layout="TNC")],
        [describe("label", (3, 5, 2), layout="TNC")],
        inputs_need_grad=True,
    )
    mod.init_params(None, arrays(mx, rng, fc_weight=(2, 4), fc_bias=(2,)), {})
    mod.init_optimizer(optimizer_params={"learning_rate": 0.1})
    mod.set_states(value=0.5)
    metric = mx.metric.create("mse")
    batch = mx.io.DataBatch([mx.nd.array(rng.uniform(-1, 1, (3, 5, 4)))], [mx.nd.array(rng.uniform(-1, 1, (3, 5, 2)))])
    numbers = {}
    for step in ("first", "second"):
        mod.forward_backward(batch)
        mod.update()
        mod.update_metric(metric, batch.label)
        numbers[step] = mod.get_outputs()[0].asnumpy().tolist()
        numbers[step + " gradient"] = mod.get_input_grads()[0].asnumpy().tolist()
        mod.set_states(mod.get_outputs(merge_multi_context=False))
    numbers["states"] = mod.get_states(merge_multi_context=False)[0][0].asnumpy().tolist()
    numbers["metric"] = metric.get()[1]
    shapes = [[one.shape for one in listed] for listed in mod.get_states(merge_multi_context=False)]
    return {"texts": {"slices": str(mod._exec_group.slices), "states": str(shapes)}, "numbers": numbers}


if __name__ == "__main__":
    import mxnet

    warnings.simplefilter("ignore")
    rows = {case: trained(mxnet, **options) for case, options in CASES.items()}
    rows["states"] = with_states(mxnet)
    with open(RECORDED, "w") as file:
        json.dump(rows, file, separators=(",", ":"))
        file.write("\n")
