"""Q learning with a target network, in the manner of MXNet's example/reinforcement-learning/dqn."""

import json

import mxnet as mx
import numpy as np

STATES, ACTIONS, BATCH, DISCOUNT = 6, 3, 8, 0.9


class DQNOutput(mx.operator.CustomOp):
    """Passes the values on, and learns those of the actions that were taken, with clipped errors."""

    def forward(self, is_train, req, in_data, out_data, aux):
        self.assign(out_data[0], req[0], in_data[0])

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        x = out_data[0].asnumpy()
        action = in_data[1].asnumpy().astype(int)
        reward = in_data[2].asnumpy()
        dx = np.zeros_like(x)
        rows = np.arange(action.shape[0])
        dx[rows, action] = np.clip(x[rows, action] - reward, -1, 1)
        self.assign(in_grad[0], req[0], mx.nd.array(dx))


@mx.operator.register("DQNOutput")
class DQNOutputProp(mx.operator.CustomOpProp):
    def __init__(self):
        super(DQNOutputProp, self).__init__(need_top_grad=False)

    def list_arguments(self):
        return ["data", "action", "reward"]

    def list_outputs(self):
        return ["output"]

    def infer_shape(self, in_shape):
        return [in_shape[0], (in_shape[0][0],), (in_shape[0][0],)], [in_shape[0]], []

    def create_operator(self, ctx, shapes, dtypes):
        return DQNOutput()


def q_network():
    net = mx.sym.Variable("data")
    net = mx.sym.FullyConnected(data=net, name="fc1", num_hidden=12)
    net = mx.sym.Activation(data=net, name="relu1", act_type="relu")
    net = mx.sym.FullyConnected(data=net, name="fc2", num_hidden=ACTIONS)
    return mx.sym.Custom(data=net, name="dqn", op_type="DQNOutput")


def copy_params(source, target):
    for name, value in source.items():
        if name in target and name.startswith("fc"):
            value.copyto(target[name])


rng = np.random.RandomState(22)
net = q_network()
online = net.simple_bind(mx.cpu(), data=(BATCH, STATES), dqn_action=(BATCH,), dqn_reward=(BATCH,), grad_req="write")
for name, value in online.arg_dict.items():
    if name.startswith("fc"):
        value[:] = np.random.RandomState(len(name) + value.shape[0]).uniform(-0.5, 0.5, value.shape)
target_args = {name: value.copyto(mx.cpu()) for name, value in online.arg_dict.items()}
# With gradients, though unused: MXNet 1.9.1's fused kernels of inference miss what is copied into their weights later.
target = net.bind(mx.cpu(), target_args, {name: mx.nd.zeros(value.shape) for name, value in target_args.items()})
single = online.reshape(data=(1, STATES), dqn_action=(1,), dqn_reward=(1,))
updater = mx.optimizer.get_updater(mx.optimizer.create("adagrad", learning_rate=0.05, rescale_grad=1.0 / BATCH))
moves = rng.randint(0, STATES, (STATES, ACTIONS))
rewards = rng.rand(STATES, ACTIONS)
state, memory, errors, taken, values = 0, [], [], [], []
for step in range(48):
    one_hot = np.eye(STATES)[[state]]
    single.forward(is_train=True, data=mx.nd.array(one_hot))
    action = int(rng.randint(ACTIONS)) if rng.rand() < 0.5 else int(mx.nd.argmax_channel(single.outputs[0]).asscalar())
    taken.append(action)
    memory.append((state, action, rewards[state, action], moves[state, action]))
    state = moves[state, action]
    if len(memory) >= BATCH and step % 6 == 5:
        rows = [memory[index] for index in rng.randint(0, len(memory), BATCH)]
        states, actions, gains, nexts = (np.array(column) for column in zip(*rows))
        ahead = target.forward(is_train=True, data=mx.nd.array(np.eye(STATES)[nexts]))[0]
        goal = mx.nd.array(gains) + mx.nd.max(ahead, axis=1) * DISCOUNT
        online.forward(
            is_train=True, data=mx.nd.array(np.eye(STATES)[states]), dqn_action=mx.nd.array(actions), dqn_reward=goal
        )
        chosen = mx.nd.choose_element_0index(online.outputs[0], mx.nd.array(actions))
        errors.append(float(mx.nd.abs(chosen - goal).mean().asscalar()))
        values.append(float(online.outputs[0].asnumpy().mean()))
        online.backward()
        for index, name in enumerate(net.list_arguments()):
            if name.startswith("fc"):
                updater(index, online.grad_dict[name], online.arg_dict[name])
        if step % 12 == 11:
            copy_params(online.arg_dict, target.arg_dict)
out = {
    "arguments": net.list_arguments(),
    "shapes": net.infer_shape(data=(BATCH, STATES)),
    "taken": taken,
    "errors": errors,
    "values": values,
    "equal": bool((target.arg_dict["fc2_weight"].asnumpy() == online.arg_dict["fc2_weight"].asnumpy()).all()),
    "target": {
        name: float(value.asnumpy().sum()) for name, value in sorted(target.arg_dict.items()) if name[:2] == "fc"
    },
    "gradient": online.grad_dict["fc2_weight"].asnumpy()[:, :4].tolist(),
}
print(json.dumps(out))
