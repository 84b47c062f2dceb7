"""Modules, as `mx.mod`: a symbol with its parameters, bound to shapes, that can be trained, scored and asked."""

from ..absent import module_getattr
from .base_module import BaseModule
from .bucketing_module import BucketingModule
from .module import Module
from .python_module import PythonLossModule, PythonModule
from .sequential_module import SequentialModule

__all__ = ["BaseModule", "BucketingModule", "Module", "PythonLossModule", "PythonModule", "SequentialModule"]

__getattr__ = module_getattr(__name__, __all__)
