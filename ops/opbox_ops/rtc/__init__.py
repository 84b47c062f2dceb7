"""CUDA source compiled at run time: NVRTC on a GPU, an emulator that checks every access on a CPU.

`signature` reads kernel signatures and writes the 0.9 form's frame; `translate` makes CUDA source into C++ for the
emulator; `emulator` and `cupy` compile and launch. The client's face (`mx.rtc`) is in opbox.
"""

from .signature import Argument, decorate, parse_signature

__all__ = ["Argument", "decorate", "parse_signature"]
