"""OPBOX_DISABLE: what it names is off, and a name that is none is refused."""

from __future__ import annotations

import pytest

from opbox_ops import switches
from opbox_protocol.errors import BadRequestError


def test_names_are_off_and_others_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(switches.VARIABLE, raising=False)
    assert not any(map(switches.is_off, switches.SWITCHES))
    monkeypatch.setenv(switches.VARIABLE, " winograd,cuda-graphs, ")
    assert set(filter(switches.is_off, switches.SWITCHES)) == {"winograd", "cuda-graphs"}


def test_a_name_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(switches.VARIABLE, "fusion,winogradd")
    sentence = "OPBOX_DISABLE: expected names of c-kernels, .*, winograd, got 'winogradd'"
    with pytest.raises(BadRequestError, match=sentence):
        switches.is_off("fusion")
    with pytest.raises(BadRequestError, match=sentence):
        switches.check()
