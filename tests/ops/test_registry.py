"""The registry: names and aliases, open attributes, declared inputs and outputs, plug-ins, the catalogue."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opbox_ops import registry
from opbox_ops.params import Bool, Int, Params
from opbox_ops.registry import Counted, Op, Slot, Variadic, register, register_backward, unless, when
from opbox_protocol.errors import ConflictError, NotFoundError, UnknownOperatorError
from tests.cases import all_cases

LISTED = Path(__file__).with_name("mxnet_operators.txt").read_text(encoding="utf-8").split()
"""The operators of MXNet 1.9.1 that opbox serves."""


class SomeParams(Params):
    count: Int = 2
    flag: Bool = False


@pytest.fixture
def op() -> Iterator[Op]:
    """An operator that is gone after the test."""
    definition = register("_test_op", SomeParams, inputs=("data",), aliases=("_test_alias",), doc="For a test.")
    yield definition
    registry.unregister("_test_op")


def test_names_and_aliases(op: Op) -> None:
    assert registry.get("_test_op") is op
    assert registry.get("_test_alias") is op
    assert "_test_op" in registry.names()
    assert "_test_alias" not in registry.names()
    assert registry.find("_no_such_op") is None


def test_names_that_are_taken(op: Op) -> None:
    for name, aliases in (("_test_op", ()), ("_test_alias", ()), ("_test_other", ("_test_op",))):
        with pytest.raises(ConflictError, match=r"is registered already; use extend\("):
            register(name, aliases=aliases)
    assert registry.find("_test_other") is None


@pytest.mark.parametrize(
    ("name", "near"),
    [("FulyConnected", "FullyConnected"), ("convolution", "Convolution"), ("broadcast_ad", "broadcast_add")],
)
def test_an_unknown_name_gets_the_nearest(name: str, near: str) -> None:
    if registry.find(name) is not None:
        pytest.skip(f"{name} is a name")
    with pytest.raises(UnknownOperatorError, match=f"operator '{name}' is not registered: did you mean .*{near}"):
        registry.get(name)


def test_a_name_like_no_other() -> None:
    with pytest.raises(UnknownOperatorError, match=r"not registered: GET /v1/ops lists what there is"):
        registry.get("qqqqqqqqqq")


def test_backward_operators_are_not_suggested() -> None:
    with pytest.raises(UnknownOperatorError) as caught:
        registry.get("_backward_FullyConnecte")
    assert "_backward" not in caught.value.message.partition(":")[2]


def test_taken_out() -> None:
    register("_test_short", aliases=("_test_short_alias",))
    registry.unregister("_test_short")
    assert registry.find("_test_short") is None
    assert registry.find("_test_short_alias") is None
    with pytest.raises(NotFoundError, match="_test_short"):
        registry.unregister("_test_short")


def test_attributes_of_any_key(op: Op) -> None:
    op.set_attr("MyTeam.Cost", lambda p: 3)
    assert op.get_attr("MyTeam.Cost")(None) == 3
    assert op.get_attr("MyTeam.Other", "none") == "none"
    assert registry.attribute("MyTeam.Cost").keys() == {"_test_op"}
    assert "MyTeam.Cost" in op.attr_keys()
    with pytest.raises(ConflictError, match=r"'MyTeam\.Cost' is set already; give a higher level"):
        op.set_attr("MyTeam.Cost", 4)
    op.set_attr("MyTeam.Cost", 5, level=11)
    assert op.get_attr("MyTeam.Cost") == 5
    op.set_attr("MyTeam.Cost", 6, level=3)
    assert op.get_attr("MyTeam.Cost") == 5


def test_an_operator_is_extended_from_elsewhere(op: Op) -> None:
    registry.extend("_test_alias").set_attr("Added", True)
    assert op.get_attr("Added") is True
    with pytest.raises(UnknownOperatorError):
        registry.extend("_test_nowhere")


def test_compute_by_device(op: Op) -> None:
    assert op.computes("cpu") == ()

    @op.compute("gpu")
    def _(*arguments: Any) -> None: ...

    assert [compute.level for compute in op.computes("gpu")] == ["reference"]
    assert op.computes("cpu") == ()
    assert op.json()["devices"] == ["gpu"]
    assert op.json()["levels"] == {"gpu": ["reference"]}


def test_one_compute_for_both_devices(op: Op) -> None:
    @op.compute()
    def _(*arguments: Any) -> None: ...

    assert op.computes("cpu") == op.computes("gpu")


def _op(inputs: Any = ("data",), outputs: Any = ("output",)) -> Op:
    return Op("_unregistered", SomeParams, inputs, outputs, (), "")


def test_conditional_inputs_and_auxiliary_states() -> None:
    op = _op(("data", Slot("bias", unless("flag")), Slot("gamma", when("count", 3, 4)), Slot("state", aux=True)))
    names = {
        (2, False): ["data", "bias", "state"],
        (3, False): ["data", "bias", "gamma", "state"],
        (2, True): ["data", "state"],
        (4, True): ["data", "gamma", "state"],
    }
    for (count, flag), expected in names.items():
        params = SomeParams(count=count, flag=flag)
        assert op.input_names(params) == expected
        assert op.num_inputs(params) == len(expected)
        assert op.aux_indices(params) == [len(expected) - 1]


def test_counted_inputs_and_outputs() -> None:
    op = _op(Variadic("count"), Counted("count", "part"))
    assert op.input_names(SomeParams(count=3)) == ["arg0", "arg1", "arg2"]
    assert op.output_names(SomeParams(count=2)) == ["part0", "part1"]
    assert op.num_visible_outputs(SomeParams(count=2)) == 2
    assert op.aux_indices(SomeParams()) == []


def test_hidden_outputs() -> None:
    op = _op(outputs=("output", Slot("mean", visible=when("flag")), Slot("mask", visible=False)))
    assert op.num_outputs(SomeParams()) == 3
    assert op.num_visible_outputs(SomeParams()) == 1
    assert op.num_visible_outputs(SomeParams(flag=True)) == 2
    op.set_attr("FNumVisibleOutputs", lambda p: 3)
    assert op.num_visible_outputs(SomeParams()) == 3


def test_functions_of_the_params() -> None:
    op = _op(lambda p: [f"in{i}" for i in range(p.count)], lambda p: ["out"] * p.count)
    assert op.input_names(SomeParams(count=2)) == ["in0", "in1"]
    assert op.num_outputs(SomeParams(count=4)) == 4
    op.set_attr("FMutateInputs", lambda p: [1])
    assert op.aux_indices(SomeParams()) == [1]


def test_backward_operators() -> None:
    op = register_backward("_backward_test_thing")
    try:
        assert op.is_backward
        assert not registry.get("FullyConnected").is_backward
    finally:
        registry.unregister("_backward_test_thing")


def test_the_documentation_is_the_files() -> None:
    assert registry.get("FullyConnected").doc.startswith("FullyConnected: out = data @ weight.T + bias")


def test_every_operator_tells_itself_in_json() -> None:
    for name in registry.names():
        description = registry.get(name).json()
        assert json.loads(json.dumps(description)) == description
        assert description["doc"], f"{name} has no documentation"
        assert description["devices"] == ["cpu", "gpu"], f"{name} runs on {description['devices']} only"


def test_every_declared_condition_names_a_parameter() -> None:
    for name in registry.names():
        op = registry.get(name)
        for declared in (op.inputs, op.outputs):
            if isinstance(declared, Variadic | Counted):
                assert declared.count in op.params.model_fields, name
            elif isinstance(declared, tuple):
                for slot in declared:
                    for condition in (slot.present, slot.visible):
                        if condition is not None and not isinstance(condition, bool):
                            assert condition.param in op.params.model_fields, f"{name}: {slot.name}"


def test_every_forward_operator_infers_its_shape() -> None:
    lacking = [
        name for name in registry.names() if not registry.get(name).is_backward and not registry.get(name).shape_rule
    ]
    assert not lacking, f"no FInferShape: {', '.join(lacking)}"


def test_every_operator_tells_its_shapes() -> None:
    """In the docstring of its file: in words, or as the sizes of an array's axes."""
    shapes = re.compile(r"\bshapes?\b|\((?:[^()]|\([^()]*\))*[,…](?:[^()]|\([^()]*\))*\)")
    files = {name: sys.modules[registry.module(name)].__doc__ or "" for name in registry.names()}
    silent = [name for name, text in files.items() if not registry.get(name).is_backward and not shapes.search(text)]
    assert not silent, f"no shapes in the files of {', '.join(silent)}"


def test_every_operator_of_mxnet_has_rows() -> None:
    rows = {case.op for case in all_cases()}
    # Custom runs code of users, in the service, and has tests of its own (tests/custom).
    lacking = [name for name in LISTED if name != "Custom" and registry.get(name).name not in rows]
    assert not lacking, f"no row in tests/cases: {', '.join(lacking)}"


def test_every_operator_has_rows() -> None:
    rows = {case.op for case in all_cases()}
    # What runs subgraphs has tests of its own (tests/control_flow), as no row can hold a graph.
    lacking = [
        name
        for name in registry.names()
        if not registry.get(name).is_backward and not registry.get(name).get_attr("TSubgraphs") and name not in rows
    ]
    assert not lacking, f"no row in tests/cases: {', '.join(lacking)}"


def test_what_waits_for_all_operators_runs_at_once_when_they_are_there() -> None:
    seen: list[bool] = []
    registry.when_loaded(lambda: seen.append(registry.find("RNN") is not None))
    assert seen == [True]


def test_what_waits_for_all_operators_finds_those_imported_after_it() -> None:
    script = """if True:
        from opbox_ops import registry
        seen = []
        registry.when_loaded(lambda: seen.append(registry._names.get("max") is not None))
        assert not seen
        registry.load()
        print(seen)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True]"
