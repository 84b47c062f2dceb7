"""Proposals, regions and their two losses, in the manner of MXNet's example/rcnn (Faster R-CNN)."""

import json

import mxnet as mx
import numpy as np

SIZE, ANCHORS, ROIS, CLASSES = 32, 3, 6, 3
SCALES, RATIOS, STRIDE = (1, 2, 4), (1,), 8


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.1, 0.1, arr.shape)


def features():
    net = mx.sym.Variable("data")
    for index in range(3):
        net = mx.sym.Convolution(net, kernel=(3, 3), pad=(1, 1), stride=(2, 2), num_filter=6, name=f"conv{index}")
        net = mx.sym.Activation(net, act_type="relu", name=f"relu{index}")
    return net


def rpn_heads(conv_feat):
    rpn_conv = mx.sym.Convolution(data=conv_feat, kernel=(3, 3), pad=(1, 1), num_filter=6, name="rpn_conv_3x3")
    rpn_relu = mx.sym.Activation(data=rpn_conv, act_type="relu", name="rpn_relu")
    score = mx.sym.Convolution(data=rpn_relu, kernel=(1, 1), num_filter=2 * ANCHORS, name="rpn_cls_score")
    boxes = mx.sym.Convolution(data=rpn_relu, kernel=(1, 1), num_filter=4 * ANCHORS, name="rpn_bbox_pred")
    return score, boxes


def rpn_train():
    score, boxes = rpn_heads(features())
    score = mx.sym.Reshape(data=score, shape=(0, 2, -1, 0), name="rpn_cls_score_reshape")
    cls_prob = mx.sym.SoftmaxOutput(
        data=score,
        label=mx.sym.Variable("label"),
        multi_output=True,
        normalization="valid",
        use_ignore=True,
        ignore_label=-1,
        name="rpn_cls_prob",
    )
    loss = mx.sym.Variable("bbox_weight") * mx.sym.smooth_l1(
        name="rpn_bbox_loss_", scalar=3.0, data=boxes - mx.sym.Variable("bbox_target")
    )
    return mx.sym.Group([cls_prob, mx.sym.MakeLoss(name="rpn_bbox_loss", data=loss, grad_scale=1.0 / 16)])


def rcnn():
    feat = features()
    score, boxes = rpn_heads(feat)
    score = mx.sym.Reshape(data=score, shape=(0, 2, -1, 0))
    prob = mx.sym.SoftmaxActivation(data=score, mode="channel", name="rpn_cls_act")
    prob = mx.sym.Reshape(data=prob, shape=(0, 2 * ANCHORS, -1, SIZE // STRIDE), name="rpn_cls_act_reshape")
    rois = mx.sym.contrib.Proposal(
        cls_prob=prob,
        bbox_pred=boxes,
        im_info=mx.sym.Variable("im_info"),
        name="rois",
        feature_stride=STRIDE,
        scales=SCALES,
        ratios=RATIOS,
        rpn_pre_nms_top_n=40,
        rpn_post_nms_top_n=ROIS,
        threshold=0.7,
        rpn_min_size=4,
    )
    pool = mx.sym.ROIPooling(data=feat, rois=rois, pooled_size=(2, 2), spatial_scale=1.0 / STRIDE, name="roi_pool")
    fc = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.Flatten(pool), num_hidden=10, name="fc6"), act_type="relu")
    cls_score = mx.sym.FullyConnected(data=fc, num_hidden=CLASSES, name="cls_score")
    bbox_pred = mx.sym.FullyConnected(data=fc, num_hidden=4 * CLASSES, name="bbox_pred")
    cls_prob = mx.sym.SoftmaxOutput(
        data=cls_score, label=mx.sym.Variable("label"), normalization="batch", name="cls_prob"
    )
    loss = mx.sym.MakeLoss(
        mx.sym.smooth_l1(bbox_pred - mx.sym.Variable("bbox_target"), scalar=1.0), grad_scale=1.0 / ROIS
    )
    return mx.sym.Group([mx.sym.BlockGrad(rois), cls_prob, loss])


def start(executor, names):
    for name in names:
        ByShape()(mx.init.InitDesc(name), executor.arg_dict[name])


rng = np.random.RandomState(26)
image = rng.rand(1, 3, SIZE, SIZE)
grid = SIZE // STRIDE
net = rpn_train()
inputs = {
    "data": image,
    "label": rng.randint(-1, 2, (1, ANCHORS * grid, grid)),
    "bbox_target": rng.randn(1, 4 * ANCHORS, grid, grid),
    "bbox_weight": rng.randint(0, 2, (1, 4 * ANCHORS, grid, grid)),
}
executor = net.simple_bind(mx.cpu(), **{name: value.shape for name, value in inputs.items()})
names = [name for name in net.list_arguments() if name not in inputs]
start(executor, names)
steps = []
for _ in range(5):
    prob, loss = executor.forward(is_train=True, **{name: mx.nd.array(value) for name, value in inputs.items()})
    label = inputs["label"].reshape(1, 1, -1)
    picked = np.take_along_axis(prob.asnumpy().reshape(1, 2, -1), np.maximum(label, 0), axis=1)[label >= 0]
    steps.append([float(-np.log(picked).mean()), float(loss.asnumpy().sum())])
    executor.backward()
    for name in names:
        executor.arg_dict[name][:] -= 0.1 * executor.grad_dict[name]
out = {"rpn": {"names": [net.list_arguments(), net.list_outputs()], "steps": steps}}
out["rpn"]["gradient"] = executor.grad_dict["rpn_bbox_pred_weight"].asnumpy().ravel()[:6].tolist()

whole = rcnn()
inputs = {
    "data": image,
    "im_info": np.array([[SIZE, SIZE, 1.0]]),
    "label": rng.randint(0, CLASSES, (ROIS,)),
    "bbox_target": rng.randn(ROIS, 4 * CLASSES),
}
second = whole.simple_bind(mx.cpu(), **{name: value.shape for name, value in inputs.items()})
start(second, [name for name in whole.list_arguments() if name not in inputs])
second.copy_params_from({name: executor.arg_dict[name] for name in names})
steps, first = [], None
learning = [name for name in whole.list_arguments() if name.startswith(("fc6", "cls", "bbox_pred"))]
for _ in range(5):
    second.forward(is_train=True, **{name: mx.nd.array(value) for name, value in inputs.items()})
    rois, prob, loss = (output.asnumpy() for output in second.outputs)
    first = rois if first is None else first
    steps.append([float(-np.log(prob[np.arange(ROIS), inputs["label"]]).mean()), float(loss.sum())])
    second.backward()
    for name in learning:
        second.arg_dict[name][:] -= 0.1 * second.grad_dict[name]
out["rcnn"] = {
    "shapes": whole.infer_shape(data=(1, 3, SIZE, SIZE), im_info=(1, 3))[1],
    "rois": first.tolist(),
    "steps": steps,
    "gradients": {
        name: float(np.abs(second.grad_dict[name].asnumpy()).sum()) for name in ("conv2_weight", "fc6_weight")
    },
}
print(json.dumps(out))
