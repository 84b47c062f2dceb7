"""Boxes of several scales, their targets and detections, in the manner of MXNet's example/ssd."""

import json

import mxnet as mx
import numpy as np

SIZE, CLASSES, BATCH = 16, 2, 3
SIZES, RATIOS = [[0.2, 0.27], [0.5, 0.6]], [1, 2, 0.5]


class ByShape(mx.init.Initializer):
    def _init_weight(self, name, arr):
        arr[:] = np.random.RandomState(len(name) + arr.shape[0]).uniform(-0.2, 0.2, arr.shape)


def multibox_layer(from_layers):
    cls_preds, loc_preds, anchors = [], [], []
    for k, from_layer in enumerate(from_layers):
        from_name = from_layer.name
        num_anchors = len(SIZES[k]) - 1 + len(RATIOS)
        loc = mx.symbol.Convolution(
            data=from_layer, kernel=(3, 3), pad=(1, 1), num_filter=num_anchors * 4, name=f"{from_name}_loc_pred_conv"
        )
        loc = mx.symbol.transpose(loc, axes=(0, 2, 3, 1))
        loc_preds.append(mx.symbol.Flatten(data=loc))
        cls = mx.symbol.Convolution(
            data=from_layer,
            kernel=(3, 3),
            pad=(1, 1),
            num_filter=num_anchors * (CLASSES + 1),
            bias=mx.symbol.Variable(
                f"{from_name}_cls_pred_conv_bias", init=mx.init.Constant(0.0), attr={"__lr_mult__": "2.0"}
            ),
            name=f"{from_name}_cls_pred_conv",
        )
        cls_preds.append(mx.symbol.Flatten(data=mx.symbol.transpose(cls, axes=(0, 2, 3, 1))))
        prior = mx.symbol.contrib.MultiBoxPrior(
            from_layer, sizes=SIZES[k], ratios=RATIOS, clip=False, name=f"{from_name}_anchors"
        )
        anchors.append(mx.symbol.Flatten(data=prior))
    loc_preds = mx.symbol.Concat(*loc_preds, dim=1, name="multibox_loc_pred")
    cls_preds = mx.symbol.Reshape(data=mx.symbol.Concat(*cls_preds, dim=1), shape=(0, -1, CLASSES + 1))
    cls_preds = mx.symbol.transpose(cls_preds, axes=(0, 2, 1), name="multibox_cls_pred")
    anchors = mx.symbol.Reshape(data=mx.symbol.Concat(*anchors, dim=1), shape=(0, -1, 4), name="multibox_anchors")
    return loc_preds, cls_preds, anchors


def backbone():
    data = mx.symbol.Variable("data")
    layers = []
    for index in range(3):
        data = mx.symbol.Convolution(data, kernel=(3, 3), stride=(2, 2), pad=(1, 1), num_filter=6, name=f"conv{index}")
        data = mx.symbol.Activation(data, act_type="relu", name=f"relu{index}")
        layers.append(data)
    return layers[1:]


def train_symbol():
    loc_preds, cls_preds, anchors = multibox_layer(backbone())
    loc_target, loc_target_mask, cls_target = mx.symbol.contrib.MultiBoxTarget(
        anchors,
        mx.symbol.Variable(name="label"),
        cls_preds,
        overlap_threshold=0.5,
        ignore_label=-1,
        negative_mining_ratio=3,
        minimum_negative_samples=0,
        negative_mining_thresh=0.5,
        variances=(0.1, 0.1, 0.2, 0.2),
        name="multibox_target",
    )
    cls_prob = mx.symbol.SoftmaxOutput(
        data=cls_preds,
        label=cls_target,
        ignore_label=-1,
        use_ignore=True,
        multi_output=True,
        normalization="valid",
        name="cls_prob",
    )
    loc_loss_ = mx.symbol.smooth_l1(name="loc_loss_", data=loc_target_mask * (loc_preds - loc_target), scalar=1.0)
    loc_loss = mx.symbol.MakeLoss(loc_loss_, grad_scale=1.0, normalization="valid", name="loc_loss")
    cls_label = mx.symbol.MakeLoss(data=cls_target, grad_scale=0, name="cls_label")
    det = mx.symbol.contrib.MultiBoxDetection(
        cls_prob, loc_preds, anchors, name="detection", nms_threshold=0.5, variances=(0.1, 0.1, 0.2, 0.2), nms_topk=400
    )
    det = mx.symbol.MakeLoss(data=det, grad_scale=0, name="det_out")
    return mx.symbol.Group([cls_prob, loc_loss, cls_label, det])


class MultiBoxMetric(mx.metric.EvalMetric):
    """Cross entropy of the classes and smooth L1 of the boxes."""

    def __init__(self, eps=1e-8):
        super(MultiBoxMetric, self).__init__("MultiBox")
        self.eps = eps
        self.num = 2
        self.name = ["CrossEntropy", "SmoothL1"]
        self.reset()

    def reset(self):
        self.num_inst, self.sum_metric = [0, 0], [0.0, 0.0]

    def update(self, labels, preds):
        cls_prob, loc_loss, cls_label = (pred.asnumpy() for pred in preds[:3])
        valid = np.sum(cls_label >= 0)
        label = cls_label.flatten()
        mask = np.where(label >= 0)[0]
        prob = cls_prob.transpose((0, 2, 1)).reshape((-1, cls_prob.shape[1]))[mask, np.int64(label[mask])]
        self.sum_metric[0] += float((-np.log(prob + self.eps)).sum())
        self.num_inst[0] += int(valid)
        self.sum_metric[1] += float(np.sum(loc_loss))
        self.num_inst[1] += int(valid)

    def get(self):
        return self.name, [total / count for total, count in zip(self.sum_metric, self.num_inst)]


rng = np.random.RandomState(27)
corners = rng.uniform(0.05, 0.4, (5 * BATCH, 2, 2))
ends = corners + rng.uniform(0.2, 0.5, corners.shape)
labels = np.concatenate([rng.randint(0, CLASSES, (5 * BATCH, 2, 1)), corners, ends], axis=2).astype("float32")
labels[::2, 1] = -1  # a second object in every other image
x = rng.rand(5 * BATCH, 3, SIZE, SIZE).astype("float32")
net = train_symbol()
train = mx.io.NDArrayIter({"data": x}, {"label": labels}, BATCH)
module = mx.mod.Module(net, label_names=("label",), context=mx.cpu())
metric = MultiBoxMetric()
steps = []
module.fit(
    train,
    eval_metric=metric,
    num_epoch=2,
    optimizer_params={"learning_rate": 0.05, "momentum": 0.9, "wd": 5e-4, "rescale_grad": 1.0 / BATCH},
    initializer=ByShape(),
    batch_end_callback=lambda param: steps.append(param.eval_metric.get()[1]),
)
outputs = [output.asnumpy() for output in module.get_outputs()]
args, _ = module.get_params()
out = {
    "names": [net.list_arguments(), net.list_outputs()],
    "shapes": net.infer_shape(data=(BATCH, 3, SIZE, SIZE), label=(BATCH, 2, 5))[:2],
    "steps": steps,
    "labels": outputs[2].sum(axis=1).tolist(),
    "detections": [int((outputs[3][:, :, 0] >= 0).sum()), outputs[3][0, :3].tolist()],
    "params": {name: float(np.abs(value.asnumpy()).sum()) for name, value in sorted(args.items())},
}
print(json.dumps(out))
