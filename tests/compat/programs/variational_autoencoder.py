"""A variational autoencoder whose loss is a symbol, in the manner of MXNet's example/vae and its VAE class."""

import json

import mxnet as mx
import numpy as np

mx.random.seed(1)


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.3, 0.3, arr.shape)


def network(hidden, latent, pixels, batch):
    data = mx.sym.Variable("data")
    noise = mx.sym.Variable("noise")  # the same draws for whoever runs this
    code = mx.sym.Activation(mx.sym.FullyConnected(data, name="encoder_h", num_hidden=hidden), act_type="tanh")
    mu = mx.sym.FullyConnected(code, name="mu", num_hidden=latent)
    logvar = mx.sym.FullyConnected(code, name="logvar", num_hidden=latent)
    z = mu + mx.sym.exp(0.5 * logvar) * noise
    back = mx.sym.Activation(mx.sym.FullyConnected(z, name="decoder_z", num_hidden=hidden), act_type="tanh")
    y = mx.sym.Activation(
        mx.sym.FullyConnected(back, name="decoder_x", num_hidden=pixels), act_type="sigmoid", name="y"
    )
    divergence = -0.5 * mx.sym.sum(1 + logvar - mx.sym.pow(mu, 2) - mx.sym.exp(logvar), axis=1)
    nothing = 1e-6
    likelihood = mx.sym.sum(data * mx.sym.log(y + nothing) + (1 - data) * mx.sym.log(1 - y + nothing), axis=1)
    loss = mx.sym.MakeLoss(mx.sym.mean(divergence - likelihood), name="loss")
    return mx.sym.Group([loss, mx.sym.BlockGrad(y), mx.sym.BlockGrad(mu, name="code"), mx.sym.BlockGrad(divergence)])


rng = np.random.RandomState(4)
shapes = rng.rand(3, 20) > 0.5
x = (shapes[rng.randint(0, 3, 60)] ^ (rng.rand(60, 20) > 0.95)).astype("float32")
noise = rng.randn(60, 2).astype("float32")
net = network(hidden=12, latent=2, pixels=20, batch=12)
train = mx.io.NDArrayIter(data={"data": x, "noise": noise}, batch_size=12)
module = mx.mod.Module(net, data_names=["data", "noise"], label_names=None)
module.bind(data_shapes=train.provide_data)
module.init_params(initializer=ByShape())
module.init_optimizer(
    optimizer="adam", optimizer_params={"learning_rate": 0.02, "wd": 1e-3, "epsilon": 1e-6, "rescale_grad": 1.0}
)
losses, gradients = [], {}
for batch in train:
    module.forward_backward(batch)
    loss, _, _, divergence = module.get_outputs()
    losses.append([float(loss.asscalar()), float(divergence.asnumpy().mean())])
    module.update()
grads = dict(zip(module._exec_group.param_names, module._exec_group.grad_arrays))
for name in ("mu_weight", "logvar_weight", "decoder_x_bias"):
    gradients[name] = float(np.abs(grads[name][0].asnumpy()).sum())
train.reset()
codes = module.predict(train, num_batch=2)[2]
params, _ = module.get_params()

# The decoder alone draws new images from given codes.
decoder = net.get_internals()["y_output"]
z = mx.sym.Variable("z")
back = mx.sym.Activation(mx.sym.FullyConnected(z, name="decoder_z", num_hidden=12), act_type="tanh")
alone = mx.sym.Activation(mx.sym.FullyConnected(back, name="decoder_x", num_hidden=20), act_type="sigmoid")
executor = alone.simple_bind(mx.cpu(), grad_req="null", z=(4, 2))
executor.copy_params_from(params, allow_extra_params=True)
drawn = executor.forward(z=mx.nd.array([[-1, -1], [-1, 1], [1, -1], [1, 1]]))[0]
out = {
    "arguments": net.list_arguments(),
    "outputs": net.list_outputs(),
    "shapes": net.infer_shape(data=(12, 20), noise=(12, 2)),
    "losses": losses,
    "gradients": gradients,
    "codes": codes.asnumpy()[:4].tolist(),
    "internal": decoder.list_arguments(),
    "drawn": drawn.asnumpy().sum(axis=1).tolist(),
}
print(json.dumps(out))
