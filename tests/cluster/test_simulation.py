"""The simulation of the controller runs, small, and loses no session out of sight."""

import sys
from itertools import count
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import cluster_simulation


def test_every_session_is_accounted_for() -> None:
    readings = count()
    simulation = cluster_simulation.Simulation(20, 2000, 40.0, 7, clock=lambda: next(readings) * 1e-4)
    figures = simulation.run()
    asked = 2000 + figures.outcomes["sessions lost"]
    answered = sum(figures.outcomes[name] for name in ("placed", "refused 429", "refused 503", "still waiting"))
    assert answered == asked
    assert figures.outcomes["nodes lost"] == 1
    assert figures.outcomes["placed"] > 1000
    for node in simulation.nodes.values():
        assert all(0 <= free <= cluster_simulation.GPU_BYTES for free in node.free.values())


def test_it_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    cluster_simulation.main(["--nodes", "5", "--sessions", "50", "--seconds", "5"])
    printed = capsys.readouterr().out
    for words in ("decisions a second of one core", "staleness", "| report |", "state: "):
        assert words in printed


@pytest.mark.parametrize("option", ["--nodes=0", "--sessions=-1", "--seconds=nan"])
def test_a_size_that_is_none(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cluster_simulation.main([option])
    assert "expected --nodes of at least 1" in capsys.readouterr().err
