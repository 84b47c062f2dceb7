"""Modules, as `mx.mod`: a symbol with its parameters, bound to shapes, that can be trained, scored and asked."""

from .base_module import BaseModule
from .bucketing_module import BucketingModule
from .module import Module

__all__ = ["BaseModule", "BucketingModule", "Module"]
