"""Network builders that take `mx` as an argument: the same code builds with opbox and with MXNet.

    import opbox as mx
    from examples.networks import lenet

    net = lenet.build(mx, num_classes=10)
    net.infer_shape(**lenet.shapes(batch=100))

Each module has `build(mx, ...)`, which returns a symbol, and `shapes(batch)`, the shapes of its inputs.
"""
