"""Starts local Ray clusters, and ends searches whose cluster has died, where Ray would hang."""

# Without its raylet a local cluster places nothing any more, and Tune waits. Without the GCS, Ray's
# calls block in C++, out of reach of Ctrl-C, until Ray ends the process after a minute with a
# message about its internals. Hence a thread that checks both and can end the process.
# While a cluster starts, they block for as long as a process of Ray's is frozen or slow, often with
# the interpreter's lock held, where no thread runs. Hence a process that starts the cluster. This
# one imports no Ray here: both can import it at the same time.

import logging
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from tune_speed.core.errors import ServiceError
from tune_speed.core.text import switch
from tune_speed.runtime.process import stop_signals
from tune_speed.tuning.ray.token import have_token, ray_folder

START_LIMIT_S = 120.0
"""In this time a local cluster must have started."""
RAY_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_MAX_PENDING_TRIALS_PG": "16",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray's default is 15: any other process of the machine would go first, and trials are timed.
    "RAY_worker_niceness": "0",
    # Tune sets it for trials; here for all processes, see `compat.use_prestarted_workers`.
    "PL_DISABLE_FORK": "1",
    # The default is 60 s: too little on a busy machine.
    "RAY_worker_register_timeout_seconds": f"{START_LIMIT_S:.0f}",
    # Ray would hold the driver in C++ until its first workers register: for ever, if one is late
    # (Ray's issue 40131). `cluster` waits for them instead.
    "RAY_prestart_worker_first_driver": "0",
}
"""What the user set instead holds."""

LOOK_EVERY_S = 1.0
# A joined cluster's head may not answer for this long [s]; Ray itself gives up after 60.
UNREACHABLE_S = 30.0
# Time for the search to end by itself, as on Ctrl-C [s]; after that the process ends.
GRACE_S = 20.0
# Time for the processes of a cluster to end [s].
END_S = 10.0
# Processes that a local cluster cannot do without, as Ray calls them.
NEEDED = {"raylet": "raylet", "gcs_server": "GCS"}
KEEP = (
    "import sys; sys.path[:] = sys.argv[2:];"
    " from tune_speed.tuning.ray.health import keep; keep(int(sys.argv[1]))"
)
# For how long the driver may join a cluster, and go on with that after a signal [s]. It takes 0.2 s
# at a load of 29 on two cores, and Ray gives up a node that has died after 60. The driver says when
# it does; C code writes the signals' numbers.
JOINS, HAS_JOINED = 0xFE, 0xFF
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LIMITS_S = {JOINS: 90.0, HAS_JOINED: math.inf} | dict.fromkeys(STOPS, 1.0)
HANGS = "Ray does not start on this machine: this process hangs in it, and is ended"


@contextmanager
def ended_with_ray() -> Iterator[None]:
    """Stops the block as Ctrl-C would, or the process, once Ray is dead. Raises: ServiceError."""
    find_cause, is_over = _death_check(), threading.Event()
    errors: list[ServiceError] = []
    kept = f"Finished trials are kept; go on with {switch('resume')} once Ray can run."

    def watch() -> None:
        cause = None
        while cause is None:
            if is_over.wait(LOOK_EVERY_S):
                return
            cause = find_cause()
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
    from tune_speed.tuning.ray.compat import is_client, own_node

    node = own_node()
    if is_client() or node is None:
        return lambda: None  # Ray's client has a limit of its own.
    if Head.own is not None:
        return Head.own.cause
    host, _, port = node.gcs_address.rpartition(":")
    return Unreachable(host.strip("[]"), int(port)).cause


class Unreachable:
    """Measures for how long nothing answers at an address."""

    def __init__(self, host: str, port: int, *, limit_s: float = UNREACHABLE_S) -> None:
        self._place, self._limit_s = (host, port), limit_s
        self._since_s: float | None = None

    def cause(self) -> str | None:
        try:
            socket.create_connection(self._place, timeout=5.0).close()
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


class Head:
    """The process that starts a local cluster and keeps it, on this end of the line to it."""

    own: "Head | None" = None
    """The one whose cluster this process starts or has joined."""

    def __init__(self) -> None:
        """Starts it, and does not wait for the cluster."""
        have_token()
        self._line, other = socket.socketpair()
        self._line.setblocking(False)
        # Ctrl-C in a terminal, and the terminal's end, reach that process and Ray's as well, but it
        # is this one that decides what they mean.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        try:
            self._process = psutil.Popen(
                [sys.executable, "-c", KEEP, str(other.fileno()), *sys.path],
                env=RAY_SETTINGS | os.environ,
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            Head.own = self
        finally:
            other.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def address(self) -> str:
        """Returns HOST:PORT of the cluster. Raises: ConnectionError if it does not start."""
        if not _is_heard(self._line, START_LIMIT_S):
            raise ConnectionError(f"its processes need more than {START_LIMIT_S:g} s")
        said = _heard(self._line).decode()
        if "\n" in said or not said:
            last = said.strip().rpartition("\n")[2] or "the process that starts it has ended"
            raise ConnectionError(last) from RuntimeError(said)
        return said

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Has that process end this one if the block hangs, or does not heed Ctrl-C."""
        is_main = threading.current_thread() is threading.main_thread()
        self._line.send(bytes([JOINS]))
        stops = [n for n in STOPS if signal.getsignal(n) is signal.default_int_handler]
        with stop_signals(*stops) as is_stopped:
            # C code writes there, whoever holds the interpreter's lock.
            before = signal.set_wakeup_fd(self._line.fileno()) if is_main else -1
            try:
                yield
            finally:
                if is_main:
                    signal.set_wakeup_fd(before)
                self._line.send(bytes([HAS_JOINED]))
        if is_stopped():
            raise KeyboardInterrupt

    def cause(self) -> str | None:
        if not _is_heard(self._line, 0.0):
            return None
        return _heard(self._line).decode() or "the process that keeps Ray's has ended"

    def end(self) -> None:
        """Ends the cluster at once, whatever hangs, and once only."""
        if Head.own is self:
            Head.own = None
            self._line.close()
            _clear(self._process)
            self._process.wait()


def keep(line_descriptor: int) -> None:
    logging.disable()
    line = socket.socket(fileno=line_descriptor)
    threading.Thread(target=_follow, args=(line, os.getppid()), daemon=True).start()
    try:
        from tune_speed.tuning.ray.compat import start_node

        # Where not even that thread runs, which ends this process.
        signal.alarm(int(START_LIMIT_S))
        node = start_node(START_LIMIT_S)
        signal.alarm(0)
        line.sendall(node.gcs_address.encode())
        while (cause := _cause_of(node)) is None:
            time.sleep(LOOK_EVERY_S)
    except Exception:
        cause = traceback.format_exc()
    with suppress(OSError):  # The driver is gone.
        line.sendall(cause.encode())
    threading.Event().wait()


def _cause_of(node: Any) -> str | None:
    for name, process in node.dead_processes():
        if name in NEEDED:
            code = process.returncode
            killed, over = f"was killed by signal {-code}", f"ended with exit code {code}"
            how = killed if code < 0 else over
            return f"Ray's {NEEDED[name]}, without which no search runs, {how}"
    return None


def _follow(line: socket.socket, driver: int) -> None:
    ends_s = math.inf
    while time.monotonic() < ends_s:
        if not _is_heard(line, None if ends_s == math.inf else 0.1):
            continue
        said = _heard(line)
        if not said:
            break
        for each in filter(LIMITS_S.get, said):
            limit_s = time.monotonic() + LIMITS_S[each]
            ends_s = min(ends_s, limit_s) if each in STOPS else limit_s
    else:
        os.write(2, f"error: {HANGS}\n".encode())
        os.kill(driver, signal.SIGKILL)
    _clear(psutil.Process())
    os._exit(0)


def _is_heard(line: socket.socket, timeout_s: float | None) -> bool:
    """Returns whether something came, or the other end closed, within this time; None: any."""
    # Of a process with 1,024 open files `select.select` would refuse the next.
    poll = select.poll()
    poll.register(line, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else round(1000 * timeout_s)))


def _heard(line: socket.socket) -> bytes:
    with suppress(ConnectionError):  # The other end is gone, and left something unread.
        return os.read(line.fileno(), 65536)
    return b""


def _clear(head: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        left = [*head.children(recursive=True), *([head] if head.pid != os.getpid() else [])]
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(left, timeout=0.5)  # Not longer: nothing may read how they ended.
    for session in ray_folder().glob(f"session_*_{head.pid}"):
        shutil.rmtree(session, ignore_errors=True)
    latest = ray_folder() / "session_latest"
    with suppress(OSError):
        if not latest.exists():
            latest.unlink()
        ray_folder().rmdir()  # If it is empty.
