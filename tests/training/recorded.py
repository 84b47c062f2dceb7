"""What record_mxnet.py wrote, and the inputs that it wrote it for."""

from __future__ import annotations

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

HERE = Path(__file__).parent

VALUES: dict[str, Any] = json.loads((HERE / "mxnet_values.json").read_text())


@cache
def inputs() -> ModuleType:
    """record_mxnet.py, whose functions make the inputs; imported without MXNet."""
    spec = importlib.util.spec_from_file_location("record_mxnet", HERE / "record_mxnet.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {"mxnet": ModuleType("mxnet")}):
        spec.loader.exec_module(module)
    return module
