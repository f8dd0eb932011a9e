"""The soak's search, cluster and server, and what is done to them; see `bench_soak`."""

import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from itertools import chain
from pathlib import Path
from random import Random
from typing import NamedTuple, Self

import psutil
from helpers.command import finished, ledger
from helpers.tracking.servers import mlflow_server
from helpers.tracking.stores import locked
from ray_nodes import Cluster, RayNode
from soak_world import (
    COMMANDS,
    DOCUMENTED,
    FREEZE_S,
    LONGEST_S,
    Commands,
    Disk,
    Process,
    ShiftedClock,
    frozen,
)

NODE_AWAY_S, SERVER_AWAY_S, LOCKED_S, FROZEN_S = 15.0, 10.0, 8.0, 8.0
SEEN_WITHIN_S = 60.0
JUMPS_S = (-3600, -30, 30, 3600, 86400)
SAMPLE_EVERY_S, SETTLE_S = 5.0, 10.0
STALL_S = 180.0
"""Two minutes, and what a driver may be frozen for."""
PATIENCE_S = 60.0
"""A session that has no news yet is spared so long."""
NUM_WORKERS = 2


class Sample(NamedTuple):
    session: int
    age_s: float
    num_finished: int
    memory_mib: float
    num_files: int
    num_threads: int


class Held(NamedTuple):
    """What cluster and server hold while no search runs."""

    num_processes: int
    num_files: int
    memory_mib: float
    files: Counter[str]
    """Open files by the name of the process."""


class Soak:
    """A search that is looked after: what is gone is brought back."""

    def __init__(self, folder: Path, *, rng: Random) -> None:
        self.folder, self._rng = folder, rng
        self.happened: list[tuple[float, str, bool]] = []
        """Seconds from the start, kind, and whether there was anything to do it to."""
        self.samples: list[Sample] = []
        self.num_sessions = 0
        self.ended_itself: list[int] = []
        """Exit codes of sessions that nobody ended."""
        self.asked: list[tuple[int, float]] = []
        """Exit codes of sessions that were asked to end, and how long that took [s]."""
        self.stalled_s = 0.0
        """The longest time without a line in the ledger."""
        self.left: list[str] = []
        self.commands, self._clock = Commands(folder), ShiftedClock(folder)
        (folder / "faults").mkdir(exist_ok=True)
        self._stack = ExitStack()
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._busy: list[threading.Thread] = []
        self._is_server_up = True
        self._search: Process
        self._asked_s: float | None = None
        self._session_s = self._sampled_s = self._began_s = self._moved_s = time.monotonic()
        self._size = 0

    def __enter__(self) -> Self:
        try:
            self._disk = self._stack.enter_context(closing(Disk(self.folder / STUDIES)))
            self._cluster = self._stack.enter_context(Cluster(loses_nodes=True))
            self._head = self._cluster.add(cpus=1, **self._node_variables)
            self._workers: list[RayNode] = []
            for _ in range(NUM_WORKERS):
                self._add_worker()
            self._server = self._stack.enter_context(mlflow_server(self.folder / "server"))
            self._warm_up()
            self.before = self._held()
            self._start()
        except BaseException:
            self._end()
            raise
        self._began_s = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def happen(self, kind: str) -> None:
        """Lets a fault happen beside all else: it may wait for its victim, or take a while."""
        self._beside(lambda: self._happen(kind))

    def _beside(self, what: Callable[[], None]) -> None:
        thread = threading.Thread(target=what, daemon=True)
        thread.start()
        self._busy.append(thread)

    def _happen(self, kind: str) -> None:
        try:
            was_done = KINDS[kind](self)
        except Exception:  # Of ours: the hour goes on.
            traceback.print_exc()
            was_done = False
        at_s = time.monotonic() - self._began_s
        self.happened.append((at_s, kind, was_done))
        number = len(finished(self.folder))
        note = "" if was_done else " (nobody there)"
        print(f"{at_s:6.0f} s  {number:5} trials finished  {kind}{note}", flush=True)

    def look_after(self) -> None:
        """Brings back what is due, and the driver; takes a sample."""
        now_s = time.monotonic()
        due = [each for each in self._due if each[0] <= now_s]
        self._due = [each for each in self._due if each[0] > now_s]
        for _, bring_back in due:
            self._beside(bring_back)
        for worker in [each for each in self._workers if each.has_ended]:
            self._workers.remove(worker)
            worker.kill()
            self._later(NODE_AWAY_S, self._add_worker)
        if self._driver() is None and self._is_server_up:
            self._session_over()
            self._start()
        self._look_for_stall(now_s)
        if now_s - self._sampled_s > SAMPLE_EVERY_S:
            self._sampled_s = now_s
            self._sample()
            self.commands.look()

    @property
    def is_up(self) -> bool:
        """Whether this session has news, or had time for some: else it would only be started."""
        return max(self._moved_s, time.monotonic() - PATIENCE_S) > self._session_s

    def _look_for_stall(self, now_s: float) -> None:
        size = (self.folder / STUDIES / "tiny" / "ledger.jsonl").stat().st_size
        if size != self._size or not self._is_server_up:
            self._size, self._moved_s = size, now_s
        stalled_s = now_s - max(self._moved_s, self._session_s)
        self.stalled_s = max(self.stalled_s, stalled_s)
        if stalled_s > STALL_S:
            self._moved_s = now_s
            self.commands.broken.append(f"hangs: no line in {STALL_S:g} s {self._said[-3000:]}")
            self.kill_driver()

    def finish(self) -> None:
        """Stops the search, brings everything back, and lets it finish what was proposed."""
        for _, bring_back in self._due:
            bring_back()
        self._due = []
        for thread in self._busy:
            thread.join(200)
        if (driver := self._driver()) is not None:
            driver.send_signal(signal.SIGINT)
        code = self.commands.end(self._search, DOCUMENTED)
        print(f"stopped, exit code {code}", flush=True)
        proposed = {e["trial_id"] for e in ledger(self.folder) if e["event"] == "proposed"}
        for _ in range(3):
            self._start("--trials", str(len(proposed)))
            code = self.commands.end(self._search, DOCUMENTED, within_s=LONGEST_S)
            print(f"finished what was left, exit code {code}", flush=True)
            if code in (0, 1):
                break
        self._try_commands()
        self.left = self.commands.left()
        time.sleep(SETTLE_S)
        self.after = self._held()

    def kill_node(self) -> bool:
        if len(self._workers) < NUM_WORKERS:
            return False
        node = self._workers.pop(self._rng.randrange(len(self._workers)))
        node.kill()
        self._later(NODE_AWAY_S, self._add_worker)
        return True

    def kill_driver(self) -> bool:
        driver = self._driver()
        if driver is None:
            return False
        driver.kill()
        return True

    def kill_server(self) -> bool:
        if not self._is_server_up:
            return False
        self._is_server_up = False
        self._server.kill()
        self._later(SERVER_AWAY_S, self._restart_server)
        return True

    def lock_database(self) -> bool:
        with locked(self.folder / "server" / "mlflow.db"):
            time.sleep(LOCKED_S)
        return True

    def kill_starting(self) -> bool:
        old = set(self.trial_processes())
        return self._once_seen(lambda: self._newcomer(old), lambda process: process.kill())

    def kill_measuring(self) -> bool:
        return self._once_seen(self._measuring, lambda process: process.kill())

    def freeze(self, processes: list[psutil.Process]) -> bool:
        frozen(processes, self._rng.uniform(*FREEZE_S) if processes else 0.0)
        return bool(processes)

    def raylet(self) -> list[psutil.Process]:
        """Returns that of a node: the node is lost if it is frozen for long."""
        if len(self._workers) < NUM_WORKERS:
            return []
        return [p for p in self._rng.choice(self._workers).processes if p.name() == "raylet"]

    def drivers(self) -> list[psutil.Process]:
        return list(filter(None, [self._driver()]))

    def server_processes(self) -> list[psutil.Process]:
        return self._server.processes if self._is_server_up else []

    def freeze_disk(self) -> bool:
        if self._disk.is_mounted:
            self._disk.freeze(FROZEN_S)
        return self._disk.is_mounted

    def shift_clock(self) -> bool:
        self._clock.shift(self._rng.choice(JUMPS_S))
        return self._clock.is_there

    def interrupt_twice(self) -> bool:
        if not self.ask_driver(signal.SIGINT):
            return False
        time.sleep(1)
        self.ask_driver(signal.SIGINT)
        return True

    @property
    def _node_variables(self) -> dict[str, str]:
        """What trial processes need: the network that the study names, and the driver's folders."""
        return {
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(FAULTY), os.environ.get("PYTHONPATH")])
            ),
            "FAULTS_FOLDER": str(self.folder / "faults"),
            "TUNE_SPEED_CACHE": os.environ["TUNE_SPEED_CACHE"],
            "TUNE_SPEED_TURNSTILE": str(self.folder / "turnstile"),
        }

    @property
    def _nodes(self) -> list[RayNode]:
        return [self._head, *self._workers]

    def _start(self, *arguments: str) -> None:
        resume = ["--resume"] if self.num_sessions else []
        options = ("--address", self._cluster.address, *resume, *arguments)
        self._search = self.commands.start(
            "search", "tiny.yaml", *options, **self._own, **self._clock.variables
        )
        self._asked_s = None
        self.num_sessions += 1
        self._session_s = time.monotonic()

    def _warm_up(self) -> None:
        """Runs a few trials in peace: Ray and the server open most files when first asked."""
        self._start("--trials", "3")
        code = self.commands.end(self._search, {0, 1}, within_s=LONGEST_S)
        assert code in (0, 1), self.commands.broken
        time.sleep(SETTLE_S)

    def _session_over(self) -> None:
        code = self._search.wait(10)
        asked = {-signal.SIGHUP, -signal.SIGINT, -signal.SIGTERM} if self._asked_s else set()
        self.commands.check(self._search, DOCUMENTED | {-9} | asked)
        if self._asked_s is not None:
            self.asked.append((code, time.monotonic() - self._asked_s))
            print(f"        asked to end, it did in {self.asked[-1][1]:.1f} s, exit code {code}")
        elif code != -9:
            self.ended_itself.append(code)
            print(f"        the driver ended itself, exit code {code}: {self._said[-600:]}")

    @property
    def _said(self) -> str:
        return self.commands.said(self._search)

    def _driver(self) -> psutil.Process | None:
        if self._search.poll() is not None:
            return None
        with suppress(psutil.Error):
            return psutil.Process(self._search.pid)  # `env` became it.
        return None

    def trial_processes(self) -> list[psutil.Process]:
        found = []
        for process in chain.from_iterable(node.processes for node in self._nodes):
            with suppress(psutil.Error):
                name = " ".join(process.cmdline())
                is_stopped = process.status() == psutil.STATUS_STOPPED
                found += [process] if "TrialProcess" in name and not is_stopped else []
        return found

    def to_a_trial(self, what: Callable[[psutil.Process], None]) -> bool:
        processes = self.trial_processes()
        if not processes:
            return False
        with suppress(psutil.Error):
            what(self._rng.choice(processes))
            return True
        return False

    def _once_seen(
        self,
        seen: Callable[[], psutil.Process | None],
        what: Callable[[psutil.Process], None],
    ) -> bool:
        """Does that to the first process that is seen, if one is within a while."""
        deadline_s = time.monotonic() + SEEN_WITHIN_S
        while time.monotonic() < deadline_s:
            with suppress(psutil.Error):
                if (process := seen()) is not None:
                    what(process)
                    return True
            time.sleep(0.02)
        return False

    def _newcomer(self, old: set[psutil.Process]) -> psutil.Process | None:
        time.sleep(0.3)  # A look at all processes costs time that the search needs.
        return next((p for p in self.trial_processes() if p not in old), None)

    def _measuring(self) -> psutil.Process | None:
        """Returns the process that has the others wait, while it times its steps."""
        files = {path.stat().st_ino for path in (self.folder / "turnstile").glob("*.main")}
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, mode, pid, file, *_ = line.replace("-> ", "").split()
            if (kind, mode) == ("FLOCK", "WRITE") and int(file.split(":")[2]) in files:
                return psutil.Process(int(pid))
        return None

    def ask_driver(self, number: signal.Signals) -> bool:
        """Sends a signal that ends the driver, to its group as a terminal would."""
        driver = self._driver()
        if driver is None:
            return False
        self._asked_s = self._asked_s or time.monotonic()
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, number)
        return True

    def kill_command(self, name: str, longest_s: float, *options: str) -> bool:
        after_s = self._rng.uniform(1, longest_s)
        return self.commands.kill(*self._command(name), *options, after_s=after_s, **self._own)

    def _try_commands(self) -> None:
        """Runs all commands to their ends, a certification that was killed twice, too."""
        for after_s in (30, 40):
            self.kill_command("certification", after_s)
        for name in COMMANDS:
            self.commands.run(*self._command(name), **self._own)

    def _command(self, name: str) -> tuple[str, ...]:
        place = ("--address", self._cluster.address) if name == "certification" else ()
        return (*COMMANDS[name], *place)

    @property
    def _own(self) -> dict[str, str]:
        return {**self._node_variables, **self._cluster.variables, **self._server.variables}

    def _later(self, after_s: float, what: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + after_s, what))

    def _add_worker(self) -> None:
        try:
            self._workers.append(self._cluster.add(cpus=1, **self._node_variables))
        except AssertionError as error:  # The machine is too busy for it now.
            print(f"        a node did not start: {str(error)[-300:]}", flush=True)
            self._later(NODE_AWAY_S, self._add_worker)

    def _restart_server(self) -> None:
        self._server.restart()
        self._is_server_up = True
        print(f"{time.monotonic() - self._began_s:6.0f} s  the server is back", flush=True)

    def _sample(self) -> None:
        driver = self._driver()
        if driver is None:
            return
        with suppress(psutil.Error):
            self.samples.append(
                Sample(
                    session=self.num_sessions,
                    age_s=time.monotonic() - self._session_s,
                    num_finished=len(finished(self.folder)),
                    memory_mib=driver.memory_info().rss / 2**20,
                    num_files=driver.num_fds(),
                    num_threads=driver.num_threads(),
                )
            )

    def _held(self) -> Held:
        processes = [p for node in self._nodes for p in node.processes]
        processes += self._server.processes
        files: Counter[str] = Counter()
        memory = 0.0
        for process in processes:
            with suppress(psutil.Error):
                files[process.name()] += process.num_fds()
                memory += process.memory_info().rss / 2**20
        return Held(len(processes), files.total(), memory, files)

    def _end(self) -> None:
        for thread in self._busy:
            thread.join(200)
        self.commands.kill_all()
        self._stack.close()


STUDIES = "tune_speed_studies"
FAULTY = Path(__file__).parents[1] / "faults" / "faulty"

KINDS: dict[str, Callable[[Soak], bool]] = {
    "kill -9 a trial's process": lambda soak: soak.to_a_trial(lambda process: process.kill()),
    "SIGSTOP a trial's process": lambda soak: soak.to_a_trial(lambda process: process.suspend()),
    "kill -9 a node": Soak.kill_node,
    "kill -9 the driver": Soak.kill_driver,
    "kill -9 the MLflow server": Soak.kill_server,
    "lock the server's database": Soak.lock_database,
    "kill -9 a trial as it starts": Soak.kill_starting,
    "kill -9 who measures": Soak.kill_measuring,
    "kill -9 a report": lambda soak: soak.kill_command("report", 20),
    "kill -9 an export": lambda soak: soak.kill_command("export", 12),
    "kill -9 a certification": lambda soak: soak.kill_command("certification", 40, "--again"),
    "freeze the disk": Soak.freeze_disk,
    "the clock jumps": Soak.shift_clock,
    "SIGTERM the driver": lambda soak: soak.ask_driver(signal.SIGTERM),
    "SIGHUP the driver": lambda soak: soak.ask_driver(signal.SIGHUP),
    "Ctrl-C the driver twice": Soak.interrupt_twice,
    "freeze the driver": lambda soak: soak.freeze(soak.drivers()),
    "freeze all trials": lambda soak: soak.freeze(soak.trial_processes()),
    "freeze a node's raylet": lambda soak: soak.freeze(soak.raylet()),
    "freeze the MLflow server": lambda soak: soak.freeze(soak.server_processes()),
}
