"""Settings from the environment: empty means not given, and the embedded engine asks for no token."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from opbox_protocol.errors import BadRequestError
from opbox_service import serve
from opbox_service.environment import check_environment
from opbox_service.settings import SECRETS, Settings


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


def run_serve(monkeypatch: pytest.MonkeyPatch, *options: str) -> Settings:
    """The settings that `opbox serve` would serve with."""
    passed: list[Settings] = []

    class Server:
        def __init__(self, settings: Settings) -> None:
            passed.append(settings)

        def run(self) -> None:
            """Serve nothing."""

    monkeypatch.setattr(serve, "Server", Server)
    monkeypatch.setattr(serve, "configure", lambda settings: None)
    monkeypatch.setattr(serve, "adopt_strays", lambda: None)
    assert serve.main(options) == 0
    return passed[0]


def test_every_setting_but_the_secrets_is_an_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        serve.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: opbox serve [options]\n\nServe operators over HTTP.")
    for name, field in Settings.model_fields.items():
        option = re.search(rf"--{name.replace('_', '-')}(?![\w-])", text)
        assert (option is None) == (name in SECRETS), name
        assert option is None or str(field.description).split()[0] in text


def test_options_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_PORT", "1")
    monkeypatch.setenv("OPBOX_THREADS", "3")
    options = ["--port", "2", "--ops", "a.py", "b.py", "--ops", "c.py", "--log-requests", "--deadline-s", "0.5"]
    settings = run_serve(monkeypatch, *options, "--devices", "cpu", "gpu", "--isolation", "none")
    expected: dict[str, Any] = {"port": 2, "threads": 3, "log_requests": True, "deadline_s": 0.5}
    assert {name: getattr(settings, name) for name in expected} == expected
    assert settings.ops == tuple(Path(name).absolute() for name in ("a.py", "b.py", "c.py"))
    assert settings.devices == ("cpu", "gpu")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--port", "70000"], "opbox serve: port: expected 65535 or less, got '70000'"),
        (["--workers", "many"], "opbox serve: workers: expected a number from 1 to 64, or auto, got 'many'"),
        (["--isolation", "some"], "opbox serve: isolation: expected one of 'process' or 'none', got 'some'"),
        (
            ["--trusted-proxies", "nginx"],
            "opbox serve: trusted_proxies: expected addresses or networks such as 10.0.0.7 or 10.0.0.0/8, "
            "got ['nginx']",
        ),
    ],
)
def test_a_wrong_value_is_one_sentence(monkeypatch: pytest.MonkeyPatch, options: list[str], sentence: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run_serve(monkeypatch, *options)
    assert str(ended.value) == sentence


def test_an_unknown_option_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--colour", "red"], ["--token", "a-secret-token"]):
        with pytest.raises(SystemExit) as ended:
            run_serve(monkeypatch, *options)
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert error == f"opbox serve: unrecognized arguments: {' '.join(options)}: see opbox serve --help\n"


@pytest.mark.parametrize("variable", ["OPBOX_TOKEN", "OPBOX_TOKENS"])
def test_what_is_wrong_with_a_token_shows_nothing_of_it(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for value in ("secret", '[{"name": "ann", "token": "secret"}]', '[{"name": "secret"'):
        if (variable, value[0]) != ("OPBOX_TOKEN", "["):
            monkeypatch.setenv(variable, value)
            with pytest.raises(SystemExit, match=r"opbox serve: .*token.*expected") as ended:
                run_serve(monkeypatch)
            assert "secret" not in str(ended.value)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("OPBOX_WORKER", "did you mean OPBOX_WORKERS?"),
        ("opbox_max_rnak", "did you mean OPBOX_MAX_RANK?"),
        ("OPBOX_COLOUR", "see opbox serve --help, and unset it"),
    ],
)
def test_a_misspelt_variable_is_refused(name: str, remedy: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        check_environment(["PATH", name])
    assert refused.value.message == f"{name}: expected a setting of opbox, got an unknown name: {remedy}"


def test_every_variable_that_something_reads_is_known() -> None:
    here = Path(__file__).parents[2]
    texts = [path.read_text() for part in ("client", "ops", "protocol") for path in here.glob(f"{part}/**/*.py")]
    read = {name for text in texts for name in re.findall(r'environ\w*(?:\.get\(|\[)"(OPBOX_\w+)"', text)}
    assert {"OPBOX_URL", "OPBOX_COMPUTE_LEVEL"} <= read
    check_environment([*read, *(f"OPBOX_{name.upper()}" for name in Settings.model_fields), "PATH", "MY_OPBOX_THING"])


def test_what_kubernetes_adds_for_a_service_called_opbox_is_no_setting() -> None:
    names = ("OPBOX_SERVICE_HOST", "OPBOX_SERVICE_PORT_HTTP", "OPBOX_PORT_8000_TCP_ADDR", "OPBOX_GPU_SERVICE_PORT")
    check_environment(names)
