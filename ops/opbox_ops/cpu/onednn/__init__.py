"""oneDNN, where the package `onednn-cpu-gomp` (extra `onednn`) is installed; only what calls it.

`library` is the binding; `primitive` makes oneDNN's primitives from shapes and binds them to arrays. `pooling` and
`batch_norm` are computes by oneDNN alone; those that choose between it and kernels of our own are in `cpu/computes`.
"""
