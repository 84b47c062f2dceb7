"""Invokes whose form has been validated before are read as strictly as the first one."""

from __future__ import annotations

from typing import Any

import pytest

from opbox_ops import registry
from opbox_ops.infer import all_same_shape
from opbox_ops.params import NoParams
from opbox_protocol.errors import BadRequestError, MXNetError
from opbox_service.commands import name_of, parse, parse_one
from opbox_service.commands.executors import recurring_run
from opbox_service.commands.operators import Invoke, recurring

from .test_engine import X, engine, put, run, session

__all__ = ["engine"]

CALL = {"do": "invoke", "op": "_plus_scalar", "attrs": {"scalar": "1"}, "inputs": [1], "outputs": [2], "into": False}


@pytest.fixture
def known(engine: Any) -> tuple[Any, str]:
    """An engine and a session in which CALL has run."""
    id = session(engine)
    run(engine, id, 1, put(1), CALL, x=X)
    assert recurring(CALL) is not None
    return engine, id


def fetch(id: int) -> dict[str, Any]:
    return {"do": "fetch", "id": id, "as": "y"}


def test_it_runs_like_the_first(known: Any) -> None:
    engine, id = known
    answer = run(
        engine, id, 2, {**CALL, "outputs": [3]}, {**CALL, "inputs": [3], "outputs": [3], "into": True}, fetch(3)
    )
    assert (answer[1]["y"] == X + 2).all()


@pytest.mark.parametrize(
    "change",
    [
        {"op": "_plus_scala"},
        {"op": 3},
        {"attrs": {"scalar": "one"}},
        {"attrs": {"scalar": "1", "more": "2"}},
        {"attrs": []},
        {"attrs": None},
        {"inputs": [1, 1]},
        {"inputs": [9]},
        {"inputs": [-1]},
        {"inputs": ["1"]},
        {"inputs": [True]},
        {"inputs": 1},
        {"inputs": [1 << 63]},
        {"outputs": [1]},
        {"outputs": [30, 31]},
        {"outputs": []},
        {"outputs": [1.0]},
        {"outputs": "2"},
        {"into": 1},
        {"into": "yes"},
        {"into": True, "outputs": [9]},
        {"is_train": 1},
        {"more": 1},
        {"do": "invok"},
        {"do": None},
    ],
)
def test_what_does_not_fit_is_refused_in_the_same_sentence(known: Any, change: dict[str, Any]) -> None:
    """The wrong command behind recurring ones, and behind none: the sentences differ in its number alone."""
    engine, id = known
    good = [{**CALL, "outputs": [10 + i]} for i in range(3)]
    bad = {**CALL, "outputs": [20], **change}
    sentence = refused(engine, id, 2, [*good, bad])
    alone = session(engine)
    run(engine, alone, 1, put(1), x=X)
    spelt = {"is_train": False, **bad}  # of seven fields: read as a model
    assert recurring(spelt) is None
    assert sentence.replace("command 3", "command 0") == refused(engine, alone, 2, [spelt])


def refused(engine: Any, id: str, seq: int, commands: list[Any]) -> str:
    with pytest.raises(MXNetError) as error:
        run(engine, id, seq, *commands)
    assert error.value.detail["command"] == len(commands) - 1
    return str(error.value)


def test_commands_of_both_kinds_keep_their_order(known: Any) -> None:
    typed = parse([CALL, fetch(1), {**CALL, "is_train": True}, CALL], 10)
    assert [name_of(command) for command in typed] == ["invoke", "fetch", "invoke", "invoke"]
    assert isinstance(typed[2], Invoke)
    with pytest.raises(BadRequestError, match=r"^command 2 \(fetch\): id: expected an integer from 0"):
        parse([CALL, CALL, fetch(-1), CALL], 10)


def test_another_operator_of_the_name_is_met_anew(engine: Any) -> None:
    id = session(engine)
    command = {**CALL, "op": "_toy_replaced", "attrs": {}}
    for seq, factor in ((1, 2), (2, 3)):
        op = registry.register("_toy_replaced", NoParams, inputs=("data",))
        op.infer_shape(all_same_shape)
        op.compute()(lambda p, ctx, inputs, outputs, k=factor: ctx.xp.multiply(inputs[0], k, out=outputs[0]))
        free = {"do": "free", "ids": [1, 2, 3]}
        try:
            again = {**command, "outputs": [3]}
            answer = run(engine, id, seq, put(1), command, again, fetch(3), free, x=X)
        finally:
            registry.unregister("_toy_replaced")
        assert (answer[1]["y"] == X * factor).all()
    with pytest.raises(MXNetError, match=r"_toy_replaced.* is not registered"):
        run(engine, id, 3, put(1), command, x=X)


AGAIN = {"do": "invoke_again", "of": 1, "inputs": [2], "outputs": [3]}


@pytest.mark.parametrize("attrs", [{"scalar": "1"}, {"scalar": "1.25"}], ids=["a form that has run", "a new one"])
def test_an_invoke_is_repeated_by_its_number(known: Any, attrs: dict[str, str]) -> None:
    engine, id = known
    into = {**AGAIN, "inputs": [3], "into": True}
    first = {**CALL, "attrs": attrs, "outputs": [5]}
    answer = run(engine, id, 2, fetch(1) | {"as": "x"}, first, AGAIN, {**AGAIN, "inputs": [3], "outputs": [4]}, into)
    values = run(engine, id, 3, *({"do": "fetch", "id": i, "as": f"y{i}"} for i in (3, 4)))[1]
    step = float(attrs["scalar"])
    assert (answer[1]["x"] == X).all()
    assert (values["y3"] == X + 1 + 2 * step).all()
    assert (values["y4"] == X + 1 + 2 * step).all()


def test_it_repeats_outputs_that_are_dropped(known: Any) -> None:
    engine, id = known
    dropped = {**AGAIN, "of": 0, "outputs": [None]}
    assert run(engine, id, 2, {**CALL, "outputs": [5]}, dropped, fetch(5))[1]["y"].shape == X.shape


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"of": 0}, "of: expected the number of an invoke before it in the batch, got 0"),
        ({"of": 2}, "of: expected the number of an invoke before it in the batch, got 2"),
        ({"of": 3}, "of: expected the number of an invoke before it in the batch, got 3"),
        ({"of": 1 << 70}, "of: expected the number of an invoke before it in the batch, got 1180591620717411303424"),
        ({"of": -1}, "of: expected"),
        ({"of": True}, "of: expected"),
        ({"of": "1"}, "of: expected"),
        ({"of": None}, "of: expected"),
        ({"inputs": [-1]}, "expected an integer from 0 to 2"),
        ({"inputs": [True]}, "expected an integer from 0 to 2"),
        ({"inputs": 1}, "inputs: expected"),
        ({"outputs": [1.0]}, "expected an integer from 0 to 2"),
        ({"outputs": "3"}, "outputs: expected"),
        ({"into": 1}, "into: expected"),
        ({"op": "relu"}, "op"),
        ({"inputs": [9]}, "array 9: expected one of this session, got nothing"),
        ({"outputs": [1]}, "id 1 is taken"),
        ({"outputs": []}, "expected 1 ids, got 0"),
    ],
)
def test_a_repetition_that_does_not_fit_is_refused(known: Any, change: dict[str, Any], sentence: str) -> None:
    engine, id = known
    before = [fetch(1), {**CALL, "outputs": [10]}]
    assert sentence in refused(engine, id, 2, [*before, {**AGAIN, **change}])


def test_a_repetition_of_a_repetition_is_refused(known: Any) -> None:
    engine, id = known
    new = {**CALL, "attrs": {"scalar": "7"}}  # read as a model, and so are those that repeat it
    sentence = refused(engine, id, 2, [{**new, "outputs": [3]}, {**AGAIN, "of": 0, "outputs": [4]}, AGAIN | {"of": 1}])
    assert "command 2 (invoke_again): of: expected the number of an invoke before it in the batch, got 1" in sentence


def test_a_repetition_without_a_batch_is_refused() -> None:
    with pytest.raises(BadRequestError, match=r"^command 0 \(invoke_again\): of: expected the number of an invoke"):
        parse_one({**AGAIN, "of": 0})


FORWARD = {"do": "forward", "executor": 3, "is_train": True}
BACKWARD = {"do": "backward", "executor": 3, "head_grads": []}


@pytest.mark.parametrize(
    ("command", "change"),
    [
        (command, change)
        for command in (FORWARD, BACKWARD)
        for change in (
            {"executor": -1},
            {"executor": True},
            {"executor": "3"},
            {"executor": 3.0},
            {"executor": 1 << 63},
            {"executor": []},
            {"is_train": 1},
            {"is_train": "yes"},
            {"head_grads": {}},
            {"head_grads": None},
            {"head_grads": [-1]},
            {"do": "forwards"},
            {"do": None},
            {"more": 1},
        )
    ],
)
def test_runs_that_do_not_fit_are_read_as_models(command: dict[str, Any], change: dict[str, Any]) -> None:
    assert name_of(parse([command], 1)[0]) == command["do"]
    wrong = {**command, **change}
    assert recurring_run(wrong) is None
    with pytest.raises(BadRequestError, match=r"^command 0"):
        parse([wrong], 1)


def test_runs_are_read_as_their_models_are() -> None:
    for command, spelt in ((FORWARD, {**FORWARD, "watch": {}}), (BACKWARD, {"do": "backward", "executor": 3})):
        assert recurring_run(spelt) is None
        assert recurring_run(command) == parse([spelt], 1)[0]
    assert recurring_run({**BACKWARD, "head_grads": [4]}) is None
    assert not any(recurring_run(command) for command in (None, [], "forward", 3, {}))


def test_a_repetition_of_a_run_is_refused(known: Any) -> None:
    engine, id = known
    sentence = refused(engine, id, 2, [FORWARD, {**AGAIN, "of": 0}])
    assert "command 1 (invoke_again): of: expected the number of an invoke before it in the batch, got 0" in sentence
