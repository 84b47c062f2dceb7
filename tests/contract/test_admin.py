"""Routes for the scope `admin`: sessions of every owner are listed and ended."""

from __future__ import annotations

from tests.contract.live import FC, Live


def test_admin_lists_the_sessions_of_every_owner(server: Live) -> None:
    ann, bob = server.session("ann"), server.session("bob", ttl_s=50)
    ann.run({"do": "put", "id": 1, "tensor": "x"}, x=[[1.0, 2.0]])
    listed = {row["id"]: row for row in server.call("GET", "/v1/admin/sessions", owner="boss").header["sessions"]}
    assert listed[ann.id]["owner"] == "ann"
    assert listed[ann.id]["objects"] == 1
    assert listed[ann.id]["bytes"] == 16
    assert (listed[bob.id]["owner"], listed[bob.id]["ttl_s"], listed[bob.id]["device"]) == ("bob", 50, "cpu")
    assert 0 <= listed[bob.id]["age_s"] < 600


def test_a_session_counts_executors_and_backward_passes(server: Live) -> None:
    session = server.session()
    zeros = [
        {"do": "zeros", "ids": ids, "shape": shape, "dtype": "float32"}
        for ids, shape in (([1], [2, 3]), ([2, 5], [4, 3]), ([3], [4]))
    ]
    bind = {"do": "bind", "id": 10, "graph": FC, "args": {"x": 1, "w": 2, "b": 3}, "grads": {"w": 5}, "outputs": [4]}
    assert session.run(*zeros, bind).status == 200
    forward, backward = {"do": "forward", "executor": 10, "is_train": True}, {"do": "backward", "executor": 10}
    heads = {"do": "zeros", "ids": [6], "shape": [2, 4], "dtype": "float32"}
    for step in range(3):
        answer = session.run(*([heads] if not step else []), forward, {**backward, "head_grads": [6]})
        assert answer.status == 200, answer.header
    state = server.call("GET", session.path).header
    assert (state["executors"], state["steps"]) == (1, 3)


def test_admin_ends_somebodys_session_and_its_owner_is_told(server: Live) -> None:
    session = server.session("ann")
    path = f"/v1/admin/sessions/{session.id}"
    answer = server.call("DELETE", path, owner="boss")
    assert (answer.status, answer.header) == (200, {"ended": session.id, "owner": "ann"})
    gone = session.run({"do": "free", "ids": []})
    assert gone.status == 410
    assert gone.error == f"session {session.id} was ended by an administrator of the server: make a new one"
    assert server.call("DELETE", path, owner="boss").status == 410


def test_admin_ends_a_session_that_has_a_process_of_its_own(server: Live) -> None:
    session = server.session("py", code=True)
    listed = server.call("GET", "/v1/admin/sessions", owner="boss").header["sessions"]
    assert [row["owner"] for row in listed if row["id"] == session.id] == ["py"]
    answer = server.call("DELETE", f"/v1/admin/sessions/{session.id}", owner="boss")
    assert answer.header == {"ended": session.id, "owner": "py"}
    gone = session.run({"do": "free", "ids": []})
    assert (gone.status, "ended by an administrator" in gone.error) == (410, True)


def test_admin_routes_need_their_scope(server: Live) -> None:
    session = server.session("ann")
    for owner in ("ann", "bob", "monitor"):
        for method, path in (("GET", "/v1/admin/sessions"), ("DELETE", f"/v1/admin/sessions/{session.id}")):
            assert server.call(method, path, owner=owner).status == 403
    assert session.run({"do": "free", "ids": []}).status == 200


def test_admin_is_told_of_a_session_that_is_not_there(server: Live) -> None:
    answer = server.call("DELETE", "/v1/admin/sessions/nothing", owner="boss")
    assert answer.status == 404
    assert answer.error == "session 'nothing': expected one of GET /v1/admin/sessions, got an id that is none"
