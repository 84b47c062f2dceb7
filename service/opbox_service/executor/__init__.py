"""Execution: plans compiled once from graphs, run as flat lists of prepared calls; and operators called one by one."""

from .bind import bind
from .compile import compile_plan
from .invoke import CallForm, form_of, invoke
from .network import Variables, drawing, network, variables_of
from .plan import Plan
from .profile import BYTES as PROFILE_BYTES
from .profile import Profile
from .run import BoundPlan, Memory, RunProgress
from .watched import Watched

__all__ = [
    "PROFILE_BYTES",
    "BoundPlan",
    "CallForm",
    "Memory",
    "Plan",
    "Profile",
    "RunProgress",
    "Watched",
    "bind",
    "compile_plan",
    "form_of",
    "invoke",
]
__all__ += ["Variables", "drawing", "network", "variables_of"]
