"""The self-check of a GPU: it compares opbox's kernels with NumPy on this very device, once, before they are used.

    child         the process that computes, and ends with a kernel that faults
    supervision   starts that process, again behind what ended it, within a time limit
    record        what was found out, on disk
    admission     asks for the verdict before a process first computes on a GPU
    network       a small network, recorded as CUDA graphs and not

What is compared is in `opbox_ops.selfcheck`, what may be chosen then in `opbox_ops.trust`.
"""
