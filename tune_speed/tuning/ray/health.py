"""Ends a search whose Ray cluster has died, where Ray's own driver would wait without an end."""

# Without its raylet a local cluster places nothing any more, and Tune waits. Without the GCS, Ray's
# calls block in C++, out of reach of Ctrl-C, until Ray ends the process after a minute with a
# message about its internals. Hence a thread that checks both and can end the process.

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tune_speed.core.errors import ServiceError
from tune_speed.tuning.ray.compat import is_client, own_node

LOOK_EVERY_S = 1.0
# A joined cluster's head may not answer for this long [s]; Ray itself gives up after 60.
UNREACHABLE_S = 30.0
# Time for the search to end by itself, as on Ctrl-C [s]; after that the process ends.
GRACE_S = 20.0
# Processes that a local cluster cannot do without, as Ray calls them.
NEEDED = {"raylet": "raylet", "gcs_server": "GCS"}


@contextmanager
def ended_with_ray() -> Iterator[None]:
    """Stops what the block does, as Ctrl-C would, once Ray is dead.

    Where that does not help, because the main thread is in one of Ray's calls, the process ends.

    Raises: ServiceError if Ray has died.
    """
    find_cause, is_over = _death_check(), threading.Event()
    errors: list[ServiceError] = []

    def watch() -> None:
        cause = None
        while cause is None:
            if is_over.wait(LOOK_EVERY_S):
                return
            cause = find_cause()
        kept = "Finished trials are kept; go on with --resume once Ray can run."
        errors.append(ServiceError(f"{cause}. {kept}"))
        os.kill(os.getpid(), signal.SIGINT)
        if not is_over.wait(GRACE_S):
            sys.stderr.write(f"error: {errors[0]}\n")
            sys.stderr.flush()
            os._exit(errors[0].exit_code)

    thread = threading.Thread(target=watch, name="ray watch", daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt:
        if not errors:
            raise
    finally:
        is_over.set()
        thread.join(timeout=2 * LOOK_EVERY_S)
    if errors:
        raise errors[0]


def _death_check() -> Callable[[], str | None]:
    """Returns a check that says why this process's cluster is dead, or None while it is alive."""
    node = own_node()
    if is_client() or node is None:
        return lambda: None  # Ray's client has a limit of its own.
    if not node.is_head():
        host, _, port = node.gcs_address.rpartition(":")
        return Unreachable(host.strip("[]"), int(port)).cause

    def ended() -> str | None:
        for name, process in node.dead_processes():
            if name in NEEDED:
                code = process.returncode
                killed, over = f"was killed by signal {-code}", f"ended with exit code {code}"
                how = killed if code < 0 else over
                return f"Ray's {NEEDED[name]}, without which no search runs, {how}"
        return None

    return ended


class Unreachable:
    """Measures for how long nothing answers at an address."""

    def __init__(
        self, host: str, port: int, *, limit_s: float = UNREACHABLE_S, timeout_s: float = 5.0
    ) -> None:
        self._place, self._limit_s, self._timeout_s = (host, port), limit_s, timeout_s
        self._since_s: float | None = None

    def cause(self) -> str | None:
        """Connects; returns why the cluster is taken to be dead, or None."""
        try:
            socket.create_connection(self._place, timeout=self._timeout_s).close()
        except OSError as error:
            now_s = time.monotonic()
            self._since_s = now_s if self._since_s is None else self._since_s
            if now_s - self._since_s < self._limit_s:
                return None
            host, port = self._place
            limit = f"{self._limit_s:.0f} s: {error}"
            return f"the head of the Ray cluster has not answered at {host}:{port} for {limit}"
        self._since_s = None
        return None
