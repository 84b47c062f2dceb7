"""Trainings by several workers: programs with a session each, whose servers add up gradients with each other.

results = mx.dist.launch(train, workers=4)          # or: opbox dist run --workers 4 train.py
kv = mx.kv.create("dist_sync")                      # in each worker, as in MXNet
"""

from ..absent import module_getattr
from .launching import launch, run_program
from .worker import WorkerGroup, group

__all__ = ["WorkerGroup", "group", "launch", "run_program"]

__getattr__ = module_getattr(__name__, __all__)
