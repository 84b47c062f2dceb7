"""A saved model keeps its operators' sources beside it, and loads where nobody has registered them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
from opbox.operator import saved
from tests.contract.live import TOKENS, Live
from tests.custom import operators as own

INSPECT = """
import sys
import numpy as np
import opbox as mx
net = mx.sym.load(sys.argv[1])
print(net.list_arguments(), net.list_auxiliary_states(), net.list_outputs())
print(net.get_internals().list_outputs())
assert net.tojson() == open(sys.argv[1]).read()
assert "opbox_tests" not in sys.modules
print(net(data=mx.sym.Variable("other") + 1).list_arguments())
if len(sys.argv) > 2:
    print(net.infer_shape(data=(2, 3))[1])
    executor = net.simple_bind(mx.cpu(), data=(2, 3))
    for out in executor.forward(data=np.ones((2, 3), "float32")):
        print(out.asnumpy().sum())
    net.save(sys.argv[2])
"""


def network() -> mx.sym.Symbol:
    data = mx.sym.Variable("data")
    first = mx.sym.Custom(data, op_type="power_of_mine", exponent=3, name="cubed")
    return mx.sym.Group([mx.sym.Custom(first, op_type="recording", name="noted"), own.Tile(4)(data, name="tiled")])


def elsewhere(*arguments: str, **environment: str) -> list[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    done = subprocess.run(
        [sys.executable, "-c", INSPECT, *arguments], capture_output=True, text=True, env={**env, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("where", ["embedded", "http"])
def test_a_model_loads_on_another_machine(tmp_path: Path, live: Live, where: str) -> None:
    network().save(tmp_path / "net-symbol.json")
    environment = {"OPBOX_URL": live.url, "OPBOX_TOKEN": TOKENS["py"]} if where == "http" else {}
    printed = elsewhere(str(tmp_path / "net-symbol.json"), str(tmp_path / "again-symbol.json"), **environment)
    assert printed[0] == "['data'] ['noted_calls'] ['noted_output', 'tiled_output']"
    assert printed[2] == "['other']"
    assert printed[3] == "[(2, 3), (2, 3, 4)]"
    assert [float(number) for number in printed[4:]] == [12, 24]
    first, again = (json.loads((tmp_path / f"{name}-ops.json").read_text()) for name in ("net", "again"))
    assert first == again


def test_looking_at_a_model_runs_nothing_and_needs_no_engine(tmp_path: Path) -> None:
    network().save(tmp_path / "net.json")
    path = tmp_path / "net-ops.json"
    summary = json.loads(path.read_text())
    assert summary["nodes"]["cubed"]["op_type"] == "power_of_mine"
    assert any("class Power(" in piece["text"] for bundle in summary["sources"].values() for piece in bundle["pieces"])
    # Source that would end the program, were it run.
    for bundle in summary["sources"].values():
        bundle["pieces"].insert(0, {"file": "x.py", "line": 1, "text": "import os; os._exit(7)"})
    path.write_text(json.dumps(summary))
    assert elsewhere(str(tmp_path / "net.json"), OPBOX_URL="http://127.0.0.1:9")[0].startswith("['data']")


def test_a_checkpoint(tmp_path: Path) -> None:
    net = network()
    mx.model.save_checkpoint(str(tmp_path / "model"), 3, net, {}, {"noted_calls": mx.nd.zeros((3,))})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model-0003.params", "model-ops.json", "model-symbol.json",
    ]  # fmt: skip
    again, _, aux = mx.model.load_checkpoint(str(tmp_path / "model"), 3)
    assert again.tojson() == net.tojson()
    assert np.array_equal(aux["noted_calls"].asnumpy(), np.zeros(3))


def test_a_class_that_is_here_goes_first(tmp_path: Path) -> None:
    mx.sym.Custom(mx.sym.Variable("data"), op_type="square_of_mine", name="s").save(tmp_path / "s.json")
    loaded = mx.sym.load(tmp_path / "s.json")
    assert loaded._nodes()[-1].op.definition.cls is own.SquareProp


def test_a_network_without_own_operators_has_no_such_file(tmp_path: Path) -> None:
    mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3).save(tmp_path / "a-symbol.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a-symbol.json"]


def test_source_that_cannot_be_had_does_not_lose_the_model(tmp_path: Path) -> None:
    lost = 3

    @mx.operator.register("inside_of_mine")
    class Inside(mx.operator.CustomOpProp):
        number = lost

    net = mx.sym.Custom(mx.sym.Variable("data"), op_type="inside_of_mine", name="i")
    with pytest.warns(UserWarning, match="i: saved without its operator's source: .* move it to the top level"):
        net.save(tmp_path / "i.json")
    assert mx.sym.load(tmp_path / "i.json").tojson() == net.tojson()


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "other"}', '{"format": "opbox operators 1", "sources": {}}'])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "a-symbol.json").write_text(mx.sym.Variable("a").tojson())
    (tmp_path / "a-ops.json").write_text(text)
    with pytest.raises(mx.MXNetError, match=r"a-ops.json: expected operators as Symbol.save writes them"):
        mx.sym.load(tmp_path / "a-symbol.json")


def test_where_the_file_is() -> None:
    assert saved.path_beside("models/lenet-symbol.json") == Path("models/lenet-ops.json")
    assert saved.path_beside(Path("lenet.json")).name == "lenet-ops.json"
