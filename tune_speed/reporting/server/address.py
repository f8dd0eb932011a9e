"""Where a server listens, and the address at which a browser finds it."""

import errno
import ipaddress
import socket
from urllib.parse import quote

from tune_speed.core.errors import ConfigError

BACKLOG = 128
# Where every address of the machine is listened to, none of which is meant.
ANY = ("0.0.0.0", "::")


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens; port 0: on a free one.

    Raises: ConfigError if the host is not this machine's, or the port is not to be had.
    """
    try:
        family, _, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise _no_host(host, error) from error
    try:
        return socket.create_server(place[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise _no_host(host, error) from error
        is_used = error.errno == errno.EADDRINUSE
        why = "another program listens there" if is_used else "this user may not have it"
        raise ConfigError(
            f"--port must be one that is free, but got {port} on {host}: {why}. Give another one,"
            " or 0 for any."
        ) from error


def is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def address_of(listener: socket.socket, *, token: str | None) -> str:
    host, port = listener.getsockname()[:2]
    name = socket.gethostname() if host in ANY else f"[{host}]" if ":" in host else host
    query = "" if token is None else f"?token={quote(token, safe='')}"
    return f"http://{name}:{port}/{query}"


def _no_host(host: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"--host must be a name or an address of this machine, but got {host!r}: {error}. Try"
        " 127.0.0.1, which only this machine reaches, or 0.0.0.0 for all its networks."
    )
