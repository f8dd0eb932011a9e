"""Ray's token: clusters that `ray start` begins ask for one since Ray 2.59.

`ray.init(address=…)` sends a token only if RAY_AUTH_MODE says so before Ray is imported, and a
cluster that asks for none fails trials of a driver that sends one. So the cluster is asked first.
"""

import os
from pathlib import Path

from tune_speed.errors import ServiceError

ASK_TIMEOUT_S = 5.0


def agree_on_token(address: str) -> None:
    """Makes Ray send its token to the cluster at HOST:PORT or ray://HOST:PORT if it asks for one.

    For `auto` Ray sees to it itself. What the user set in RAY_AUTH_MODE holds.

    Raises: ServiceError if the cluster asks for a token and there is none.
    """
    if address in ("auto", "local") or "RAY_AUTH_MODE" in os.environ:
        return
    if address.startswith("ray://"):
        if _has_token():  # A client server that wants none takes no notice of it.
            os.environ["RAY_AUTH_MODE"] = "token"
        return
    if not _asks_for_token(address):
        return
    if not _has_token():
        raise ServiceError(
            f"the Ray cluster at {address} asks for a token, but there is none here."
            " Copy the cluster's ~/.ray/auth_token to this machine, or set RAY_AUTH_TOKEN."
        )
    os.environ["RAY_AUTH_MODE"] = "token"


def _has_token() -> bool:
    sources = (os.environ.get("RAY_AUTH_TOKEN"), os.environ.get("RAY_AUTH_TOKEN_PATH"))
    return any(sources) or (Path.home() / ".ray" / "auth_token").exists()


def _asks_for_token(address: str) -> bool:
    """Returns whether a harmless question, which cluster this is, is refused without a token."""
    import grpc

    with grpc.insecure_channel(address) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")
        try:
            ask(b"", timeout=ASK_TIMEOUT_S)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
    return False
