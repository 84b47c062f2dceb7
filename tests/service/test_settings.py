"""Settings from the environment: empty means not given, and the embedded engine asks for no token."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from opbox_service.settings import Settings


def test_an_empty_token_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_TOKEN", "")
    assert Settings().token is None


def test_a_short_token_is_refused_by_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_TOKEN", "short")
    with pytest.raises(ValidationError, match="at least 8"):
        Settings()


def test_the_embedded_engine_takes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_TOKEN", "short")
    monkeypatch.setenv("OPBOX_TOKENS", '[{"name": "ann", "token": "another-token", "scopes": ["run"]}]')
    settings = Settings.embedded()
    assert settings.token is None
    assert settings.tokens == ()
