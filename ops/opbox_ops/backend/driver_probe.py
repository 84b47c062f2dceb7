"""Asks the NVIDIA driver for the GPUs of this machine: python driver_probe.py

It prints a JSON object: `status` (CUDA's number of an error, 0 for none; null where the driver's library does not
load), `version` (of the newest CUDA that the driver takes, as 13000) and `names`. It runs in a process of its own: a
process that has begun to use the driver is a client of the MPS server until it ends, and a driver may not answer. No
memory of a GPU is allocated. It imports nothing of opbox, so that it takes some 20 ms.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

__all__ = ["asked"]


def asked() -> dict[str, Any]:
    """The driver's answer."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"status": None, "version": 0, "names": []}
    version, count, names = ctypes.c_int(), ctypes.c_int(), []
    driver.cuDriverGetVersion(ctypes.byref(version))
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    for number in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        if not driver.cuDeviceGet(ctypes.byref(device), number):
            driver.cuDeviceGetName(name, len(name), device)
        names.append(name.value.decode(errors="replace"))
    return {"status": status, "version": version.value, "names": names}


if __name__ == "__main__":
    print(json.dumps(asked()))
