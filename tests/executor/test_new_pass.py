"""A new plan pass takes one file and its name in PASSES: then every plan that is compiled goes through it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.added_source import run_with

PASS = '''
"""Noted: prints what a plan's steps run, before another pass has rewritten them."""

from opbox_service.executor.plan import Plan

__all__ = ["noted"]


def noted(plan: Plan) -> Plan:
    """The plan as it is."""
    print([step.node.name for step in plan.steps if step.node.op is not None][:2])
    return plan
'''
LISTED = """
from .noted import noted
PASSES = (noted, *PASSES)
"""
PROGRAM = """
import numpy as np
import opbox as mx

x = mx.sym.Variable("x")
net = mx.sym.negative(mx.sym.negative(x, name="first"), name="second")
executor = net.bind(mx.cpu(), {"x": mx.nd.array([1, -2])})
print(executor.forward()[0].asnumpy().tolist())
"""


def test_a_file_and_a_name_are_a_pass(tmp_path: Path) -> None:
    file = tmp_path / "noted.py"
    file.write_text(PASS)
    package = "opbox_service.executor.passes"
    printed = run_with({package: LISTED}, {f"{package}.noted": file}, PROGRAM)
    assert printed.split("\n")[:2] == ["['first', 'second']", "[1.0, -2.0]"]


def test_the_pass_is_not_there_without_its_name() -> None:
    assert json.loads(run_with({}, {}, PROGRAM)) == [1, -2]
