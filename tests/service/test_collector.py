"""Python's collector is switched off while graphs are compiled, and only then."""

from __future__ import annotations

import gc

import pytest

from opbox_service.collector import collection_paused


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
