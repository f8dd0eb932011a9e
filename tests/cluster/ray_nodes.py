"""Real Ray clusters of several nodes on this machine: each node is a tree of processes of its own.

    with Cluster(folder) as cluster:
        head = cluster.add(cpus=1)
        other = cluster.add(cpus=1, TUNE_SPEED_CACHE="…")   # variables of its processes
        ...                                                  # cluster.address, cluster.variables
        other.kill()                                         # kill -9 of all of it

Nodes listen on 127.0.0.1, or in network namespaces of the test's. Nothing is left at the end.
"""

import ipaddress
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil
from helpers.processes import marked

START_S, STOP_S = 240.0, 20.0
START_ATTEMPTS = 3
"""Ray gives a node 30 s to start, which a busy machine may not."""
MARK = "TUNE_SPEED_TEST_NODE"
"""Variable that all processes of a node inherit, whoever their parent is by now."""
STARTED = "This command will now block forever"
QUICK_TO_NOTICE = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}
"""How soon the head takes a node for lost that says nothing."""


class RayNode:
    """One node: what `ray start --block` runs, and all below it."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self.id, self.log = uuid.uuid4().hex, log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                env={**environment, MARK: self.id},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def has_started(self) -> bool:
        """Waits until it has, or has failed to."""
        deadline = time.monotonic() + START_S
        while STARTED not in self.log.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def processes(self) -> list[psutil.Process]:
        """All that runs of it, its workers included."""
        return marked(MARK, self.id)

    def kill(self) -> None:
        """Ends the whole node with SIGKILL, all at once, as a power cut would."""
        for _ in range(100):
            left = self.processes
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait(STOP_S)
            if not left:
                return
            time.sleep(0.05)
        raise AssertionError(f"processes of a node that SIGKILL does not end: {left}")

    def stop(self) -> None:
        """Ends the node as `ray start --block` does on SIGTERM, and what is left of it by force."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill()


class Cluster:
    """Nodes that find one another through the first of them."""

    def __init__(
        self, *, dashboard: bool = False, is_outside: bool = False, loses_nodes: bool = False
    ) -> None:
        """Starts nothing yet.

        `is_outside`: nodes have addresses beyond loopback, in namespaces. `loses_nodes`: the head
        notices within seconds that a node is gone, and may take a slow one for lost.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="tsray-"))  # Short: sockets lie in it.
        self.port, self.client_port, self.dashboard_port = free_port(), free_port(), free_port()
        self.token = self.folder / "token"
        self.token.write_text(secrets.token_hex(32))
        self.token.chmod(0o600)
        self.nodes: list[RayNode] = []
        self._has_dashboard = dashboard
        self._health = QUICK_TO_NOTICE if loses_nodes else {}
        self._on_loopback = {} if is_outside else {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        launcher = str(Path(__file__).parent / "loopback_ray.py")
        ray = str(Path(sys.executable).parent / "ray")
        self._ray = [ray] if is_outside else [sys.executable, launcher]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for node in reversed(self.nodes):
                node.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def variables(self) -> dict[str, str]:
        return {"RAY_AUTH_TOKEN_PATH": str(self.token)}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def client_address(self) -> str:
        return f"ray://127.0.0.1:{self.client_port}"

    def add(
        self,
        *,
        cpus: float = 1,
        gpus: int = 0,
        prefix: Sequence[str] = (),
        ip: str = "127.0.0.1",
        head_ip: str = "127.0.0.1",
        **variables: str,
    ) -> RayNode:
        """Starts a node, the head first, and returns once it is up.

        Args:
            cpus: that it says it has.
            gpus: that it says it has.
            prefix: command that runs the node's, such as one that enters a namespace.
            ip: its address.
            head_ip: address of the head.
            variables: of its processes.
        """
        number = len(self.nodes)
        own = ["--num-cpus", f"{cpus:g}", "--num-gpus", str(gpus), "--node-ip-address", ip]
        own += ["--object-store-memory", "80000000", "--disable-usage-stats", "--block"]
        own += ["--dashboard-agent-listen-port", str(free_port())]
        own += ["--include-log-monitor", "false"]  # A process that nobody here listens to.
        folder = self.folder / f"n{number}"
        folder.mkdir()
        # Its own: in the head's, a node would unpack a job's working directory anew, under it.
        own += ["--temp-dir", str(folder)]
        role = self._head_options() if number == 0 else ["--address", f"{head_ip}:{self.port}"]
        command = [*prefix, *self._ray, "start", *role, *own]
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("RAY", "TUNE_SPEED"))},
            **self._health,
            **self.variables,
            "RAY_AUTH_MODE": "token",
            **self._on_loopback,
            "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "120",
            "RAY_raylet_start_wait_time_s": "120",
            "OMP_NUM_THREADS": "1",
            # Else trials here wait for whoever else measures on this machine.
            "TUNE_SPEED_TURNSTILE": str(self.folder / "turnstile"),
            **variables,
        }
        for _ in range(START_ATTEMPTS):
            node = RayNode(command, environment, self.folder / f"n{number}.log")
            self.nodes.append(node)
            if node.has_started():
                return node
            self.nodes.pop().kill()
        raise AssertionError(node.log.read_text())

    def said(self, name: str) -> str:
        """Returns the ends of its logs whose names begin so, for messages of tests that fail."""
        logs = sorted(self.folder.glob(f"n*/session_2*/logs/{name}*"))
        return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in logs)

    def _head_options(self) -> list[str]:
        options = ["--head", "--port", str(self.port), "--no-monitor"]
        options += ["--ray-client-server-port", str(self.client_port)]
        if not self._has_dashboard:
            return [*options, "--include-dashboard", "false"]
        place = ["--dashboard-host", "127.0.0.1", "--dashboard-port", str(self.dashboard_port)]
        return [*options, "--include-dashboard", "true", *place]


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def listening(processes: Sequence[psutil.Process]) -> list[str]:
    """Returns name and address of every socket on which they listen, each in its own network."""
    found = []
    for process in processes:
        with suppress(psutil.Error, OSError):
            own = {os.readlink(file) for file in Path(f"/proc/{process.pid}/fd").iterdir()}
            for kind in ("tcp", "tcp6"):
                table = Path(f"/proc/{process.pid}/net/{kind}").read_text().splitlines()[1:]
                rows = [row.split() for row in table]
                places = [r[1] for r in rows if r[3] == LISTEN and f"socket:[{r[9]}]" in own]
                found += [f"{process.name()} {readable_place(place)}" for place in places]
    return found


LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""


def readable_place(place: str) -> str:
    """Returns ADDRESS:PORT of what /proc/net/tcp has: words of 32 bits in the machine's order."""
    host, port = place.split(":")
    words = [bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = getattr(address, "ipv4_mapped", None)
    return f"{mapped or address}:{int(port, 16)}"
