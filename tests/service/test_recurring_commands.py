"""Invokes whose form has been validated before are read as strictly as the first one."""

from __future__ import annotations

from typing import Any

import pytest

from opbox_ops import registry
from opbox_ops.infer import all_same_shape
from opbox_ops.params import NoParams
from opbox_protocol.errors import BadRequestError, MXNetError
from opbox_service.commands import name_of, parse
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
