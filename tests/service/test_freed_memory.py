"""Memory goes back to the system after it has been freed, and not before."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from opbox_protocol.errors import GoneError
from opbox_service import allocator
from opbox_service.allocator import RETURN_BYTES, FreedMemory
from opbox_service.engine import Engine
from opbox_service.settings import Settings

X = np.ones(RETURN_BYTES // 4, np.float32)


class Holder:
    """Keeps memory until it is gone."""


@pytest.fixture
def returns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An entry for each time that memory was returned."""
    entries: list[str] = []
    monkeypatch.setattr(allocator, "return_memory", lambda: entries.append("returned"))
    return entries


def test_what_is_freed_goes_back_once(returns: list[str]) -> None:
    freed = FreedMemory()
    freed.return_in_time()
    assert not returns
    freed.add(1)
    freed.return_in_time()
    assert len(returns) == 1
    freed.add(1)
    freed.return_in_time()
    assert len(returns) == 1, "little waits for a second"
    freed.add(RETURN_BYTES)
    freed.return_in_time()
    assert len(returns) == 2
    freed.return_all()
    assert len(returns) == 2


def test_what_is_still_kept_is_waited_for(returns: list[str]) -> None:
    freed, holder = FreedMemory(), Holder()
    freed.add_with(RETURN_BYTES, holder)
    freed.return_in_time()
    freed.return_all()
    assert not returns
    del holder
    freed.return_in_time()
    assert len(returns) == 1
    freed.return_all()
    assert len(returns) == 1


def test_a_session_that_works_has_its_memory_until_its_step_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(Settings())
    id = engine.call("POST", "/v1/sessions", {})[0]["id"]
    session = engine.sessions.get("local", id)
    entries: list[int] = []
    monkeypatch.setattr(allocator, "return_memory", lambda: entries.append(len(session.table)))
    path = f"/v1/sessions/{id}/commands"
    engine.call("POST", path, {"commands": [{"do": "put", "id": 1, "tensor": "x"}]}, {"x": X})
    begun, may_end = threading.Event(), threading.Event()
    run = session._runner.run

    def held_up(*arguments: Any) -> Any:
        begun.set()
        assert may_end.wait(60)
        return run(*arguments)

    monkeypatch.setattr(session._runner, "run", held_up)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            engine.call("POST", path, {"commands": [{"do": "fetch", "id": 1, "as": "x"}]})
        except BaseException as error:
            errors.append(error)

    caller = threading.Thread(target=work)
    caller.start()
    assert begun.wait(60)
    engine.call("DELETE", f"/v1/sessions/{id}")
    assert entries == [], "its arrays are still there"
    may_end.set()
    caller.join(60)
    assert [type(error) for error in errors] == [GoneError]
    assert entries == [0], "returned once, when there were no arrays any more"
    engine.close()
