"""CuPy on a pretend GPU: its real core and the kernels that it generates, run on the CPU; `make test-gpu-pretend`.

    capsules    functions that CuPy's modules call in each other, exchanged for Python functions that may raise
    device      the devices' state: memory, streams, captured graphs, errors that tests inject, and a record of calls
    runtime     CUDA's runtime and driver calls, on that state
    compiler    g++ in NVRTC's place; device.h and device.cpp are what a kernel sees
    libraries   cuBLAS, cuSOLVER, Thrust, cuRAND's generators, by NumPy
    install     puts all of it below CuPy; site/sitecustomize.py does so in every process when CuPy is first imported

What only a GPU can show: the libraries themselves, float to integer out of range, the order of atomics.
"""
