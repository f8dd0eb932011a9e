"""Ray's token: clusters that `ray start` begins ask for one since Ray 2.59.

`ray.init(address=…)` sends a token only if RAY_AUTH_MODE says so before Ray is imported, and a
cluster that asks for none fails trials of a driver that sends one. So the cluster is asked first.
With a wrong token `ray.init` would wait for minutes, and not say why.
"""

import os
from pathlib import Path

from tune_speed.core.errors import ServiceError

ASK_TIMEOUT_S = 5.0
CLUSTER_QUESTION = "/ray.rpc.NodeInfoGcsService/GetClusterId"
CLIENT_QUESTION = "/ray.rpc.RayletDriver/ClusterInfo"
"""Harmless questions, to a cluster and to its server for `ray://`."""


def agree_on_token(address: str) -> None:
    """Makes Ray send its token to the cluster at `address` if that asks for one.

    What the user set in RAY_AUTH_MODE holds. Where nobody answers, `connect` says so later.

    Raises: ServiceError if the cluster asks for a token and there is none, or another one.
    """
    server = server_of(address)
    if server is None or not _is_refused(server, address, token=None):
        return
    token = _token()
    if token is None or os.environ.get("RAY_AUTH_MODE", "token").lower() == "disabled":
        raise ServiceError(
            f"the Ray cluster at {address} asks for a token, but none is sent. Copy the cluster's"
            " ~/.ray/auth_token to this machine, or set RAY_AUTH_TOKEN_PATH, and leave"
            " RAY_AUTH_MODE as it was."
        )
    if _is_refused(server, address, token=token):
        raise ServiceError(
            f"the Ray cluster at {address} must know the token that it is sent, but it has another"
            f" one than {_source()}. Copy the cluster's ~/.ray/auth_token to this machine, or name"
            " a copy of it in RAY_AUTH_TOKEN_PATH."
        )
    os.environ["RAY_AUTH_MODE"] = "token"


def server_of(address: str) -> str | None:
    """Returns HOST:PORT of what `address` means; None if there is no such thing."""
    if address == "auto":
        return os.environ.get("RAY_ADDRESS") or _latest_cluster()
    return None if address == "local" else address.removeprefix("ray://")


def _latest_cluster() -> str | None:
    """Returns the cluster that was started on this machine last, as Ray notes it."""
    folder = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")
    note = folder / "ray" / "ray_current_cluster"
    return note.read_text().strip() if note.exists() else None


def _token() -> str | None:
    """Returns the token that Ray would send."""
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    file = _token_file()
    return (file.read_text().strip() or None) if file.is_file() else None


def _token_file() -> Path:
    default = Path.home() / ".ray" / "auth_token"
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or default)


def _source() -> str:
    return "$RAY_AUTH_TOKEN" if os.environ.get("RAY_AUTH_TOKEN") else str(_token_file())


def _is_refused(server: str, address: str, *, token: str | None) -> bool:
    """Returns whether a question with this token is refused for want of the right one."""
    import grpc

    is_client = address.startswith("ray://")
    question = CLIENT_QUESTION if is_client else CLUSTER_QUESTION
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(server.removeprefix("ray://")) as channel:
        ask = channel.unary_unary(question)
        try:
            ask(b"", timeout=ASK_TIMEOUT_S, metadata=metadata)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
    return False
