"""Connections: which one ends, and which is refused, when there are too many."""

from __future__ import annotations

from typing import Any

import pytest

from opbox_protocol.errors import NotReadyError
from opbox_service.api.connections import MAX_WAITING_BYTES, SMALL_WAITING_BYTES, ConnectionEntry, Connections
from opbox_service.settings import Settings


class Peers:
    """Connections of a server with small limits, which note who is ended.

    Attributes:
        ended: the names of those that were ended, in order.
    """

    def __init__(self, **limits: Any) -> None:
        self.connections = Connections(Settings.model_construct(**limits))
        self.ended: list[str] = []

    def connect(self, name: str, peer: str | None = "192.0.2.1") -> ConnectionEntry:
        return self.connections.admit(peer, lambda: self.ended.append(name))

    def busy(self, name: str, peer: str | None = "192.0.2.1") -> ConnectionEntry:
        entry = self.connect(name, peer)
        self.connections.begin(entry)
        return entry


def test_a_quarter_may_be_silent() -> None:
    peers = Peers(max_connections=8)
    first = peers.busy("with a request")
    for name in "abc":
        peers.connect(name)
    assert peers.ended == ["a"]
    peers.connections.begin(first)
    assert len(peers.connections) == 3


def test_the_longest_silent_ends_first_then_the_longest_idle_then_new_ones_are_refused() -> None:
    peers = Peers(max_connections=4)
    entries = {name: peers.busy(name) for name in "abc"}
    peers.connections.rest(entries["b"])
    peers.connections.rest(entries["a"])
    peers.connect("silent")
    new = [peers.busy("new")]
    assert peers.ended == ["silent"]
    new += [peers.busy("newer"), peers.busy("newest")]
    assert peers.ended == ["silent", "b", "a"]
    with pytest.raises(NotReadyError, match="connections: expected at most 4, got more: try again in a moment"):
        peers.connect("one more")
    peers.connections.leave(new[0])
    peers.connections.leave(new[0])
    peers.connect("one more")


def test_an_idle_connection_that_begins_again_is_not_ended() -> None:
    peers = Peers(max_connections=4)
    entries = [peers.busy(name) for name in "abcd"]
    for entry in entries:
        peers.connections.rest(entry)
    peers.connections.begin(entries[0])
    peers.connect("new")
    assert peers.ended == ["b"]


@pytest.mark.parametrize("other", ["192.0.2.2", None, "127.0.0.1", "10.1.2.3", "::ffff:10.1.2.3", "2001:db8:1:3::1"])
def test_an_address_has_a_limit_of_its_own(other: str | None) -> None:
    peers = Peers(max_connections_per_address=2, trusted_proxies=("127.0.0.1", "10.0.0.0/8"))
    for peer in ("192.0.2.1", "2001:db8:1:2::1"):
        peers.busy("a", peer)
        peers.busy("b", peer)
    for same in ("192.0.2.1", "::ffff:192.0.2.1", "2001:db8:1:2::2", "2001:db8:1:2:3::1"):
        with pytest.raises(NotReadyError, match=r"at most 2 from (192\.0\.2\.1|2001:db8:1:2::/64), got more: close"):
            peers.connect("c", same)
    for _ in range(2):
        peers.busy("c", other)
    assert peers.ended == []
    assert len(peers.connections) == 6


def test_a_full_address_loses_its_own_silent_connection() -> None:
    peers = Peers(max_connections_per_address=2)
    peers.connect("another's", "192.0.2.2")
    for name in "abc":
        peers.connect(name)
    assert peers.ended == ["a"]


def test_only_large_heads_are_too_many() -> None:
    peers = Peers()
    entries = [peers.busy(f"{i}") for i in range(MAX_WAITING_BYTES // 65536)]
    assert all(peers.connections.wait(entry, 65536) for entry in entries)
    another = peers.busy("another")
    assert peers.connections.wait(another, SMALL_WAITING_BYTES)
    assert not peers.connections.wait(another, SMALL_WAITING_BYTES + 1)
    peers.connections.leave(entries[0])
    assert peers.connections.wait(another, SMALL_WAITING_BYTES + 1)


def test_fewer_are_allowed_where_the_system_allows_fewer_files() -> None:
    peers = Peers(max_connections=100)
    peers.connections.lower(1000)
    peers.connections.lower(2)
    peers.busy("a")
    peers.busy("b")
    with pytest.raises(NotReadyError, match="at most 2, got more"):
        peers.connect("c")
