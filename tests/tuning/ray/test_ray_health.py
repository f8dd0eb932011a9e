"""The rest of it, which needs a Ray that dies, is in tests/faults/test_killed_processes.py."""

import socket

from tune_speed.tuning.ray.health import Unreachable


def test_address_where_somebody_listens_is_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        unreachable = Unreachable(*server.getsockname(), limit_s=0.0)
        assert unreachable.cause() is None


def test_address_is_given_up_only_after_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    assert Unreachable(host, port, limit_s=60.0).cause() is None
    cause = Unreachable(host, port, limit_s=0.0).cause()
    assert cause is not None and f"has not answered at 127.0.0.1:{port}" in cause


def test_answer_in_between_starts_the_count_anew() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        unreachable = Unreachable(host, port, limit_s=60.0)
    assert unreachable.cause() is None
    assert unreachable._since_s is not None
    with socket.create_server((host, port)):
        assert unreachable.cause() is None
    assert unreachable._since_s is None
