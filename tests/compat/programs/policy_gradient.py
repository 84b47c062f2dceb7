"""Actor and critic with losses made of symbols, in the manner of MXNet's example/reinforcement-learning/a3c."""

import json

import mxnet as mx
import numpy as np

INPUTS, ACTIONS, BATCH = 5, 3, 10


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.4, 0.4, arr.shape)


def network(beta=0.1):
    net = mx.sym.Variable("data")
    net = mx.sym.FullyConnected(net, name="fc1", num_hidden=12)
    net = mx.sym.LeakyReLU(net, name="elu1", act_type="elu", slope=0.5)
    policy = mx.sym.FullyConnected(net, name="policy_fc", num_hidden=ACTIONS)
    policy = mx.sym.SoftmaxActivation(policy, name="policy")
    policy = mx.sym.clip(data=policy, a_min=1e-5, a_max=1 - 1e-5)
    log_policy = mx.sym.log(data=policy, name="log_policy")
    picked = mx.sym.sum(data=log_policy * mx.sym.Variable("policy_mask"), axis=1)
    advantage = mx.sym.BlockGrad(mx.sym.Variable("advantage"))
    policy_loss = mx.sym.MakeLoss(-1 * picked * advantage, name="policy_loss", grad_scale=0.5)
    entropy = mx.sym.MakeLoss(mx.sym.sum(policy * log_policy, axis=1), name="neg_entropy", grad_scale=beta)
    value = mx.sym.FullyConnected(net, name="value_fc", num_hidden=1)
    value = mx.sym.Reshape(value, shape=(-1,))
    error = value - mx.sym.Variable("value_target")
    value_loss = mx.sym.MakeLoss(mx.sym.smooth_l1(error, scalar=1.0), name="value_loss", normalization="batch")
    return mx.sym.Group([mx.sym.BlockGrad(policy), mx.sym.BlockGrad(value), policy_loss, entropy, value_loss])


rng = np.random.RandomState(23)
net = network()
inputs = {"data": (BATCH, INPUTS), "policy_mask": (BATCH, ACTIONS), "advantage": (BATCH,), "value_target": (BATCH,)}
module = mx.mod.Module(net, data_names=list(inputs), label_names=None, context=mx.cpu())
module.bind(data_shapes=list(inputs.items()), grad_req="add")
module.init_params(initializer=ByShape())
module.init_optimizer(
    kvstore=None,
    optimizer="rmsprop",
    optimizer_params={"learning_rate": 0.02, "gamma1": 0.9, "rescale_grad": 1.0 / BATCH, "clip_weights": 2.0},
)
nothing = [mx.nd.zeros(shape) for shape in list(inputs.values())[1:]]
right = rng.randn(INPUTS, ACTIONS)
losses, returns, norms = [], [], []
for step in range(6):
    states = rng.randn(BATCH, INPUTS).astype("float32")
    module.forward(mx.io.DataBatch([mx.nd.array(states), *nothing]), is_train=False)
    probabilities, values = (output.asnumpy() for output in module.get_outputs()[:2])
    actions = (probabilities.cumsum(axis=1) < rng.rand(BATCH, 1)).sum(axis=1).clip(0, ACTIONS - 1)
    reward = ((states @ right).argmax(axis=1) == actions).astype("float32")
    returns.append(float(reward.sum()))
    mask = np.eye(ACTIONS, dtype="float32")[actions]
    batch = mx.io.DataBatch([mx.nd.array(array) for array in (states, mask, reward - values, reward)])
    module.forward(batch, is_train=True)
    losses.append([float(loss.asnumpy().mean()) for loss in module.get_outputs()[2:]])
    module.backward()
    if step % 2:  # two batches add up to one update
        for name, grads in zip(module._exec_group.param_names, module._exec_group.grad_arrays):
            if name == "fc1_weight":
                norms.append(float(mx.nd.norm(grads[0]).asscalar()))
        module.update()
        for grads in module._exec_group.grad_arrays:
            for grad in grads:
                grad[:] = 0
out = {
    "arguments": net.list_arguments(),
    "outputs": net.list_outputs(),
    "shapes": net.infer_shape(**inputs),
    "losses": losses,
    "returns": returns,
    "norms": norms,
    "params": {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(module.get_params()[0].items())},
}
print(json.dumps(out))
