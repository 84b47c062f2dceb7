"""Execution: plans compiled once from graphs, run as flat lists of prepared calls; and operators called one by one."""

from .invoke import invoke
from .plan import Plan, compile_plan
from .run import Executor, Memory, bind

__all__ = ["Executor", "Memory", "Plan", "bind", "compile_plan", "invoke"]
