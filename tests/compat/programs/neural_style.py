"""An image that optimises itself towards a style and a content, in the manner of MXNet's example/neural-style."""

import json

import mxnet as mx
import numpy as np

SIZE = 12


def features():
    data = mx.sym.Variable("data")
    conv1_1 = mx.symbol.Convolution(name="conv1_1", data=data, num_filter=4, pad=(1, 1), kernel=(3, 3))
    relu1_1 = mx.symbol.Activation(name="relu1_1", data=conv1_1, act_type="relu")
    pool1 = mx.symbol.Pooling(name="pool1", data=relu1_1, pad=(0, 0), kernel=(2, 2), stride=(2, 2), pool_type="avg")
    conv2_1 = mx.symbol.Convolution(name="conv2_1", data=pool1, num_filter=6, pad=(1, 1), kernel=(3, 3))
    relu2_1 = mx.symbol.Activation(name="relu2_1", data=conv2_1, act_type="relu")
    return mx.sym.Group([relu1_1, relu2_1]), mx.sym.Group([relu2_1])


def style_gram_symbol(input_size, style):
    _, output_shapes, _ = style.infer_shape(data=(1, 3, *input_size))
    gram_list, grad_scale = [], []
    for index in range(len(style.list_outputs())):
        shape = output_shapes[index]
        x = mx.sym.Reshape(style[index], target_shape=(int(shape[1]), int(np.prod(shape[2:]))))
        gram_list.append(mx.sym.FullyConnected(x, x, no_bias=True, num_hidden=shape[1]))
        grad_scale.append(np.prod(shape[1:]) * shape[1])
    return mx.sym.Group(gram_list), grad_scale


def get_loss(gram, content):
    gram_loss = []
    for index in range(len(gram.list_outputs())):
        gvar = mx.sym.Variable(f"target_gram_{index}")
        gram_loss.append(mx.sym.sum(mx.sym.square(gvar - gram[index])))
    cvar = mx.sym.Variable("target_content")
    return mx.sym.Group(gram_loss), mx.sym.sum(mx.sym.square(cvar - content))


def total_variation(img, weight):
    """The executor of the gradient of an image's total variation, by a fixed convolution of every channel."""
    simg = mx.sym.Variable("img")
    channels = mx.sym.SliceChannel(simg, num_outputs=3)
    skernel = mx.sym.Variable("kernel")
    out = mx.sym.Concat(
        *(
            mx.sym.Convolution(
                data=channels[index],
                weight=skernel,
                num_filter=1,
                kernel=(3, 3),
                pad=(1, 1),
                no_bias=True,
                stride=(1, 1),
            )
            for index in range(3)
        )
    )
    kernel = mx.nd.array(np.array([[0, -1, 0], [-1, 4, -1], [0, -1, 0]]).reshape((1, 1, 3, 3)) / 8.0, mx.cpu())
    return (out * weight).bind(mx.cpu(), args={"img": img, "kernel": kernel})


rng = np.random.RandomState(16)
style, content = features()
gram, gscale = style_gram_symbol((SIZE, SIZE), style)
arg_shapes, _, _ = style.infer_shape(data=(1, 3, SIZE, SIZE))
params = {
    name: mx.nd.array(rng.uniform(-0.3, 0.3, shape))
    for name, shape in zip(style.list_arguments(), arg_shapes)
    if name != "data"
}
data = mx.nd.zeros((1, 3, SIZE, SIZE))
both = mx.sym.Group([gram, content])
targets = both.bind(mx.cpu(), dict(params, data=data))
data[:] = rng.uniform(-1, 1, (1, 3, SIZE, SIZE))
style_arrays = [array.copyto(mx.cpu()) for array in targets.forward()[:2]]
data[:] = rng.uniform(-1, 1, (1, 3, SIZE, SIZE))
content_array = targets.forward()[2].copyto(mx.cpu())

style_loss, content_loss = get_loss(gram, content)
loss = mx.sym.Group([style_loss, content_loss])
args = dict(params, data=mx.nd.zeros((1, 3, SIZE, SIZE)), target_content=content_array)
args.update({f"target_gram_{index}": array for index, array in enumerate(style_arrays)})
grad = mx.nd.zeros((1, 3, SIZE, SIZE))
reqs = {name: "write" if name == "data" else "null" for name in loss.list_arguments()}
executor = loss.bind(mx.cpu(), args=args, args_grad={"data": grad}, grad_req=reqs)
img = mx.nd.array(rng.uniform(-0.1, 0.1, (1, 3, SIZE, SIZE)))
grad_array = [mx.nd.ones((1,)) * (2.0 / scale) for scale in gscale] + [mx.nd.ones((1,)) * 0.05]
tv = total_variation(img, 0.02)
optimizer = mx.optimizer.SGD(
    learning_rate=0.2, wd=0.0005, momentum=0.9, lr_scheduler=mx.lr_scheduler.FactorScheduler(step=2, factor=0.9)
)
state = optimizer.create_state(0, img)
steps, images = [], []
old_img = img.copyto(mx.cpu())
for _ in range(6):
    img.copyto(executor.arg_dict["data"])
    executor.forward(is_train=True)
    executor.backward(grad_array)
    gnorm = mx.nd.norm(grad).asscalar()
    if gnorm > 3.0:
        grad[:] *= 3.0 / gnorm
    tv.forward()
    optimizer.update(0, img, grad + tv.outputs[0], state)
    change = float((mx.nd.norm(old_img - img) / mx.nd.norm(img)).asscalar())
    steps.append([float(gnorm), change, *(float(value.asnumpy().sum()) for value in executor.outputs)])
    old_img = img.copyto(mx.cpu())
out = {
    "arguments": loss.list_arguments(),
    "shapes": both.infer_shape(data=(1, 3, SIZE, SIZE))[1],
    "scales": [int(scale) for scale in gscale],
    "steps": steps,
    "image": img.asnumpy()[0, 0, :3].tolist(),
    "gradient": grad.asnumpy()[0, 1, :2].tolist(),
}
print(json.dumps(out))
