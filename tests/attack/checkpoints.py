"""Checkpoints that their owner's code has forged, restored in a worker that others share."""

from __future__ import annotations

from collections import Counter

from tests.attack.attack import Attack, Outcome
from tests.attack.box import Box
from tests.contract.live import Session
from tests.contract.test_checkpoints import begin, mark
from tests.forged_checkpoints import FURTHER

__all__ = ["ATTACKS"]


def forge() -> object:
    """In the process for code: save forged files by the process's own connection; their names."""
    import copy
    import gc
    import json
    import struct

    gc.unfreeze()
    store = next(thing for thing in gc.get_objects() if type(thing).__name__ == "RemoteCheckpoints")
    right = bytes(store.load("py", "run"))
    (length,) = struct.unpack_from("<Q", right, 8)
    header, payload = json.loads(right[64 : 64 + length]), right[64 + length :]
    wrong = {
        ("blank", 0, 1): [[1] * 64, [1 << 62, 0], [1 << 40], [-1], "x", [0.5], None],
        ("blank", 0, 2): ["FP7", 3, None, ["FP32"]],
        ("blank", 0, 0): [1, 10, -1, 1 << 64, "x"],
        ("random", "executors"): [[], [[1 << 31, 1 << 62, 1]], [[1 << 32, 0, 0]], [[-1]], [7], "x"],
        ("random", "source", "number"): [-1, 1 << 64, "x", None],
        ("random", "source", "executors"): [1 << 40, -1, "x"],
        ("executors", 0, "args"): [{}, {"x": 99, "w": 2}, {"x": "1"}, [1]],
        ("executors", 0, "graph"): [{}, "sha256:x", [], {"nodes": 1, "heads": 2}],
        ("executors",): [[7], {}, None, header["executors"] * 2],
        ("ids",): [{}, {"x": 1}, {"x": 1, "w": 1, "momentum": 1, "z": 2}, [1], None],
        ("position",): [None, [1], {"a": [1]}, {"a": {"b": 1}}],
    }
    headers = [{key: value for key, value in header.items() if key != missing} for missing in header]
    for place, values in wrong.items():
        for value in values:
            inner = changed = copy.deepcopy(header)
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = value
            headers.append(changed)
    files = [right[:size] for size in (0, 8, 16, 64, 100, len(right) - 1)]
    for changed in headers:
        text = json.dumps(changed).encode()
        text = text.ljust(-(-len(text) // 64) * 64)
        files.append((b"opboxck1" + struct.pack("<Q", len(text))).ljust(64, b"\0") + text + payload)
    for number, data in enumerate(files):
        store.save("py", f"forged{number}", [data])
    return len(files)


def forged_by_code(box: Box) -> Outcome:
    session = begin(box.live, "py")
    assert session.run(mark(0, first=True)).status == 200
    session.delete()
    session, answer = box.run_code(forge)
    count = box.text(answer)
    session.delete()
    if not count.isdigit():
        return Outcome(False, f"the code that forges: {count}")
    statuses: Counter[int] = Counter()
    further = restored = 0
    for number in range(int(count)):
        shared = box.live.session("py", code=False)
        status = shared.run({"do": "restore", "name": f"forged{number}"}).status
        statuses[status] += 1
        if status == 200:
            restored += 1
            further += _faults(shared)
        shared.delete()
    counted = ", ".join(f"{times} answered {status}" for status, times in sorted(statuses.items()))
    says = f"of {count} files {counted}; {further} further commands in {restored} sessions answered 500"
    return Outcome(not statuses[500] and not further, says)


def _faults(session: Session) -> int:
    """Further commands in a restored session that are answered by 500."""
    return sum(session.run(command).status == 500 for command in FURTHER)


ATTACKS = [
    Attack(
        "forged-checkpoints",
        "files of checkpoints with each field wrong, restored where others compute",
        forged_by_code,
        {"OPBOX_MAX_CHECKPOINTS": "1000"},
        limit_s=120.0,
    ),
]
