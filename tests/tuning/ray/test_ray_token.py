import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tune_speed.core.errors import ServiceError
from tune_speed.tuning.ray import token
from tune_speed.tuning.ray.token import agree_on_token, server_of

PLACE = "host:6379"

Cluster = Callable[..., list[str | None]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "")
    monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str | None]]:
    """A cluster that knows these tokens, None being none; lists what it was sent."""

    def make(*known: str | None) -> list[str | None]:
        sent: list[str | None] = []

        def is_refused(server: str, address: str, *, token: str | None) -> bool:
            assert (server, address) == (PLACE, PLACE)
            sent.append(token)
            return token not in known

        monkeypatch.setattr(token, "_is_refused", is_refused)
        return sent

    return make


def test_no_token_is_sent_unasked(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = cluster(None)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    agree_on_token(PLACE)
    assert sent == [None] and "RAY_AUTH_MODE" not in os.environ
    agree_on_token("local")
    assert sent == [None]


@pytest.mark.parametrize("where", ["variable", "named file", "home"])
def test_token_is_found_where_ray_looks_for_it_and_then_sent(
    cluster: Cluster,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    sent = cluster("mine")
    if where == "variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", " mine\n")
    else:
        file = home / ("elsewhere" if where == "named file" else ".ray/auth_token")
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine\n")
        if where == "named file":
            monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    agree_on_token(PLACE)
    assert sent == [None, "mine"] and os.environ["RAY_AUTH_MODE"] == "token"


def test_missing_empty_or_forbidden_token_is_told(
    cluster: Cluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = cluster("mine")
    with pytest.raises(ServiceError, match="asks for a token, but none is sent"):
        agree_on_token(PLACE)
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(" \n")
    with pytest.raises(ServiceError, match="asks for a token, but none is sent"):
        agree_on_token(PLACE)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    monkeypatch.setenv("RAY_AUTH_MODE", "Disabled")
    with pytest.raises(ServiceError, match=f"at {PLACE} asks for a token"):
        agree_on_token(PLACE)
    assert sent == [None] * 3


def test_other_clusters_token_is_told_with_its_source(
    cluster: Cluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster("theirs")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    with pytest.raises(ServiceError, match=r"another one than \$RAY_AUTH_TOKEN\."):
        agree_on_token(PLACE)
    assert "RAY_AUTH_MODE" not in os.environ


def test_address_means_variables_or_the_last(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_of("local") is None and server_of("auto") is None
    assert server_of("ray://host:10001") == "host:10001" and server_of(PLACE) == PLACE
    (home / "ray").mkdir()
    (home / "ray" / "ray_current_cluster").write_text("127.0.0.1:6379\n")
    assert server_of("auto") == "127.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "other:6379")
    assert server_of("auto") == "other:6379"


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def test_own_cluster_has_a_token_anyway(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token.have_token()
    assert "RAY_AUTH_TOKEN" not in os.environ and (home / ".ray").is_dir()  # Ray writes its own.
    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    token.have_token()
    assert os.environ["RAY_AUTH_TOKEN"] == "mine"
    made = set()
    for _ in range(2):
        monkeypatch.delenv("RAY_AUTH_TOKEN")
        token.have_token()
        made.add(os.environ["RAY_AUTH_TOKEN"])
    assert {len(each) for each in made} == {64} and len(made) == 2
