"""CUDA source compiled at run time: NVRTC on a GPU, an emulator that checks every access on a CPU.

`signature` reads kernel signatures and writes the 0.9 form's frame; `options` and `launching` check what a user gives;
`kernels` compiles once per content; `forms` are MXNet's two; `translate` makes CUDA source into C++ for the emulator;
`emulator` and `cupy` compile and launch. The client's face (`mx.rtc`) is in opbox.
"""

from .forms import KernelForm, read_kernel
from .kernels import UserKernel, compile_kernel
from .signature import Argument, decorate, parse_signature

__all__ = ["Argument", "UserKernel", "KernelForm", "compile_kernel", "decorate", "parse_signature", "read_kernel"]
