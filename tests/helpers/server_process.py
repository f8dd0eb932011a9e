"""A server of a test's: started within a bound, killed and started again, certainly stopped."""

import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil

START_S, STOP_S = 300.0, 30.0


class Server:
    """A server of one main process and its children, in a session of their own."""

    def __init__(
        self,
        command: list[str],
        *,
        folder: Path,
        port: int,
        is_up: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        user: pwd.struct_passwd | None = None,
    ) -> None:
        self.port, self.log = port, folder / "log"
        self._command, self._folder, self._is_up, self._user = command, folder, is_up, user
        own = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "PG"))}
        self._environment = {**own, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def processes(self) -> list[psutil.Process]:
        """All that runs of it."""
        if self._process is None:
            return []
        try:
            main = psutil.Process(self._process.pid)
            return [main, *main.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def start(self) -> None:
        """Returns once it answers."""
        assert self._process is None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_user(self._user),
            )
        deadline = time.monotonic() + START_S
        while not self._is_up():
            is_dead = self._process.poll() is not None
            if is_dead or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"no server: {self.log.read_text()[-3000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """Ends all of it at once, as `kill -9` or a power cut does."""
        processes = self.processes
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self._process is not None:
            self._process.wait(STOP_S)
            self._process = None
        _, alive = psutil.wait_procs(processes, timeout=STOP_S)
        assert not alive, alive

    def restart(self) -> None:
        """Starts it again where it was, killed before if it still runs."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Takes its processor away: it accepts connections and answers nothing."""
        for process in self.processes:
            process.suspend()

    def thaw(self) -> None:
        """Lets it go on."""
        for process in self.processes:
            process.resume()

    def stop(self) -> None:
        """Ends it in peace, or by force if it does not listen."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self.kill()


def free_port() -> int:
    """Returns a port of loopback that nobody listens on now."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def as_user(user: pwd.struct_passwd | None) -> dict[str, Any]:
    """Returns what makes a process run as `user`: PostgreSQL refuses to run as root."""
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
