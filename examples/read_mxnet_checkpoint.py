"""Read a checkpoint that MXNet 1.9.1 wrote: its symbol, its shapes, its parameters; then predict with it.

python examples/read_mxnet_checkpoint.py [--prefix examples/data/digits-mlp --epoch 12]
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import opbox as mx

HERE = Path(__file__).parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", default=str(HERE / "data" / "digits-mlp"))
    parser.add_argument("--epoch", type=int, default=12)
    options = parser.parse_args()

    symbol, arg_params, aux_params = mx.model.load_checkpoint(options.prefix, options.epoch)
    print("outputs:", symbol.list_outputs())
    arg_shapes, out_shapes, aux_shapes = symbol.infer_shape(data=(100, 64))
    for name, shape in zip(symbol.list_arguments(), arg_shapes, strict=True):
        print(f"  {name:16} {shape!s:12} {'trained' if name in arg_params else 'fed'}")
    for name, shape in zip(symbol.list_auxiliary_states(), aux_shapes, strict=True):
        print(f"  {name:16} {shape!s:12} auxiliary state")
    print("output shapes:", out_shapes)

    digits = load_digits()
    images, labels = (digits.data[1400:] / 16).astype("float32"), digits.target[1400:]
    mod = mx.mod.Module(symbol, label_names=None)
    mod.bind([("data", (100, 64))], for_training=False)
    mod.set_params(arg_params, aux_params, allow_missing=True)
    probabilities = mod.predict(mx.io.NDArrayIter(images, batch_size=100)).asnumpy()
    accuracy = float(np.mean(probabilities.argmax(axis=1) == labels))
    print(f"accuracy on {len(labels)} digits that MXNet did not train on: {accuracy:.4f}")


if __name__ == "__main__":
    main()
