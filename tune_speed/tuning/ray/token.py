"""Ray's token: clusters that `ray start` begins require one since Ray 2.59."""

# `ray.init(address=…)` sends a token only if RAY_AUTH_MODE says so before Ray is imported, and a
# cluster without tokens fails trials of a driver that sends one. So the cluster is asked first.
# With a wrong token `ray.init` would wait for minutes and not say why.

import os
import secrets
from pathlib import Path

from tune_speed.core.errors import ServiceError

ASK_TIMEOUT_S = 5.0
GET_CLUSTER_ID = "/ray.rpc.NodeInfoGcsService/GetClusterId"
# gRPC methods without side effects (Ray 2.60). They are not in `compat`, which imports Ray.
CLIENT_CLUSTER_INFO = "/ray.rpc.RayletDriver/ClusterInfo"


def agree_on_token(address: str) -> None:
    """Makes Ray send its token to a cluster that requires one. Raises: ServiceError."""
    server = server_of(address)
    if server is None or not _is_refused(server, address, token=None):
        return
    token, source = _token()
    if token is None or os.environ.get("RAY_AUTH_MODE", "token").lower() == "disabled":
        raise ServiceError(
            f"the Ray cluster at {address} asks for a token, but none is sent. Copy the cluster's"
            " ~/.ray/auth_token to this machine, or set RAY_AUTH_TOKEN_PATH, and leave"
            " RAY_AUTH_MODE as it was."
        )
    if _is_refused(server, address, token=token):
        raise ServiceError(
            f"the Ray cluster at {address} must know the token that it is sent, but it has another"
            f" one than {source}. Copy the cluster's ~/.ray/auth_token to this machine, or name"
            " a copy of it in RAY_AUTH_TOKEN_PATH."
        )
    os.environ["RAY_AUTH_MODE"] = "token"


def have_token() -> None:
    """Makes a token for a cluster of our own where there is none and HOME cannot hold Ray's."""
    # Ray writes one to ~/.ray, and would not start on a read-only file system or without a home.
    try:
        if _token()[0] is not None:
            return
        folder = Path.home() / ".ray"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return
    except (OSError, RuntimeError):
        pass
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def server_of(address: str) -> str | None:
    """Returns HOST:PORT; for `auto`, without RAY_ADDRESS, of the cluster started here last."""
    if address == "local":
        return None
    if address != "auto":
        return address.removeprefix("ray://")
    latest = ray_folder() / "ray_current_cluster"
    last = latest.read_text().strip() if latest.exists() else None
    return os.environ.get("RAY_ADDRESS") or last


def ray_folder() -> Path:
    return Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray"


def _token() -> tuple[str | None, str]:
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token, "$RAY_AUTH_TOKEN"
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    return ((file.read_text().strip() or None) if file.is_file() else None), str(file)


def _is_refused(server: str, address: str, *, token: str | None) -> bool:
    import grpc

    method = CLIENT_CLUSTER_INFO if address.startswith("ray://") else GET_CLUSTER_ID
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(server.removeprefix("ray://")) as channel:
        try:
            channel.unary_unary(method)(b"", timeout=ASK_TIMEOUT_S, metadata=metadata)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
    return False
