"""Execution: plans compiled once from graphs, run as flat lists of prepared calls; and operators called one by one."""

from .bind import bind
from .compile import compile_plan
from .invoke import CallForm, form_of, invoke
from .plan import Plan
from .run import Executor, Memory

__all__ = ["CallForm", "Executor", "Memory", "Plan", "bind", "compile_plan", "form_of", "invoke"]
