"""Python's collector is switched off while graphs are compiled, and only then."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from opbox_protocol.collector import collection_paused


def test_blocks_within_blocks_end_with_the_last_one() -> None:
    assert gc.isenabled()
    with collection_paused():
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_ends_a_block() -> None:
    @collection_paused()
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


TENDED = """
import gc
from opbox_protocol.collector import begin_tending, collection_paused, tend

class Ring:
    def __init__(self):
        self.itself = self

begin_tending()
before = gc.get_freeze_count()
with collection_paused():
    graph = [[i] for i in range(100_000)]
assert gc.isenabled()
assert gc.get_freeze_count() >= before + 100_000, "what stays is set aside"
del graph
assert gc.get_freeze_count() < before + 1000, "it goes when nothing refers to it"
with collection_paused():
    rings = [Ring() for _ in range(100_000)]
aside = gc.get_freeze_count()
del rings
tend()
assert gc.get_freeze_count() >= aside - 100
import opbox_protocol.collector
opbox_protocol.collector._set_aside = 1 << 40
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
tend(idle=False)
assert gc.get_freeze_count() >= aside - 100
assert 2 not in collections, "while calls run nobody waits for a search"
tend()
assert gc.get_freeze_count() < aside - 90_000, "rings among it are looked for when it has grown"
opbox_protocol.collector._set_aside = 1 << 40
collections.clear()
tend()
assert 2 not in collections, "what has not grown since the last search is not searched"
opbox_protocol.collector._set_aside = 1 << 40
with collection_paused():
    graphs = [[i] for i in range(opbox_protocol.collector.MAX_SEARCHED_OFTEN)]
tend()
assert 2 not in collections, "a search of very many objects would keep everybody waiting"
del graphs
busy = [[i] for i in range(2 * opbox_protocol.collector.TOO_MANY_OLD * opbox_protocol.collector.YOUNG)]
aside = gc.get_freeze_count()
collections.clear()
tend(idle=False)
assert 2 not in collections, "what a call has just made is not looked at while it runs"
assert gc.get_freeze_count() > aside + 100_000
assert gc.get_threshold()[2] > 1 << 20
"""


UNTENDED = """
import gc
import opbox_protocol.collector
from opbox_protocol.collector import collection_paused

collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
def make():
    with collection_paused():
        return [[i] for i in range(100_000)]

graph = make()
young = len(gc.get_objects(0))
assert young < 1000, "what stays counts as old"
assert not gc.get_freeze_count(), "and is not set aside: the process is the user's own"
assert not collections
opbox_protocol.collector._set_aside = 1 << 40
more = make()
assert 2 in collections, "seldom all is looked through"
gc.freeze()
aside = gc.get_freeze_count()
again = make()
assert gc.get_freeze_count() >= aside - 100, "what the user has set aside stays so"
"""


def test_in_a_program_what_stays_counts_as_old() -> None:
    subprocess.run([sys.executable, "-c", UNTENDED], check=True, timeout=60)


def test_a_server_sets_aside_what_stays() -> None:
    subprocess.run([sys.executable, "-c", TENDED], check=True, timeout=60)
