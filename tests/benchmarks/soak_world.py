"""What lies around the soak's search: its disk, its clock, and other commands; see `bench_soak`."""

import os
import shutil
import struct
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Sequence, Set
from contextlib import suppress
from pathlib import Path

import psutil
import yaml
from faulty_runs import MARK
from helpers.command import TUNE_SPEED, environment
from helpers.processes import command_of, marked

DISK_MIB = 256
LONGEST_S, LIMIT_S = 600.0, 120.0
"""Of a whole command, and of one that was asked to end."""
FREEZE_S = (5.0, 40.0)
DOCUMENTED = frozenset({0, 1, 2, 3, 4, 5, 130})
"""Exit codes."""
TRACES = ("Traceback (most recent", "Exception ignored", "BrokenPipeError")
COMMANDS = {
    "report": ("report", "tiny"),
    "export": ("best", "--study", "tiny", "--export", "best.yaml"),
    "certification": (
        *("certify", "tiny", "--top", "2", "--seeds", "2", "--final", "1", "--final-seeds", "2"),
    ),
}


Process = subprocess.Popen[bytes]


class Disk:
    """A file system of its own in a file, where we may mount one; an ordinary folder elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._image = folder, folder.with_suffix(".img")
        folder.mkdir(exist_ok=True)
        with self._image.open("wb") as image:
            image.truncate(DISK_MIB << 20)
        mount = ["mount", "-o", "loop,noatime", str(self._image), str(folder)]
        made = _succeeds("mkfs.ext4", "-q", str(self._image))
        self.is_mounted = made and shutil.which("fsfreeze") is not None and _succeeds(*mount)

    def freeze(self, for_s: float) -> None:
        """Lets all that write there wait so long, if we die meanwhile, too."""
        script = 'fsfreeze -f "$1"; sleep "$2"; fsfreeze -u "$1"'
        command = ["sh", "-c", script, "sh", str(self.folder), f"{for_s:g}"]
        subprocess.run(command, start_new_session=True, timeout=for_s + 60, check=False)

    def close(self) -> None:
        """Leaves a folder with what was on the disk."""
        if self.is_mounted:
            _succeeds("fsfreeze", "-u", str(self.folder))
            kept = self.folder.with_suffix(".kept")
            shutil.copytree(self.folder, kept)
            # Lazily: a process that has a file open there must not keep the soak from ending.
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True, timeout=60)
            self.folder.rmdir()
            kept.rename(self.folder)
        self._image.unlink()


class ShiftedClock:
    """A time of day that jumps, also for what is not Python, where there is a C compiler."""

    def __init__(self, folder: Path) -> None:
        self._file, self._library = folder / "clock", folder / "clock_shift.so"
        self._shift_s = 0
        self.shift(0)
        source = str(Path(__file__).with_name("clock_shift.c"))
        self.is_there = _succeeds("cc", "-shared", "-fPIC", "-o", str(self._library), source)

    @property
    def variables(self) -> dict[str, str]:
        if not self.is_there:
            return {}
        return {"LD_PRELOAD": str(self._library), "CLOCK_SHIFT": str(self._file)}

    def shift(self, by_s: int) -> None:
        self._shift_s += by_s
        with os.fdopen(os.open(self._file, os.O_RDWR | os.O_CREAT), "wb") as file:
            file.write(struct.pack("q", self._shift_s))


class Commands:
    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder, self.id = folder, uuid.uuid4().hex
        self.broken: list[str] = []
        self.codes: Counter[tuple[str, int]] = Counter()
        """How often a command ended with an exit code."""
        self.slowest: tuple[float, str] = (0.0, "")
        """The longest time from being asked to end until the end [s]."""
        self._variables, self._logs = variables, dict[int, Path]()
        (folder / "logs").mkdir(exist_ok=True)

    def start(self, *arguments: str, prefix: Sequence[str] = (), **variables: str) -> Process:
        """Starts one in a session of its own; what it prints goes to `logs`."""
        mine = {**environment(self.folder), **self._variables, **variables, MARK: self.id}
        path = self.folder / "logs" / f"{len(self._logs):03}-{arguments[0]}"
        with path.open("wb") as log:
            process = subprocess.Popen(
                ["env", "--default-signal=INT,HUP,PIPE", *prefix, TUNE_SPEED, *arguments],
                cwd=self.folder,
                env=mine,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._logs[process.pid] = path
        return process

    def end(self, process: Process, codes: Set[int], *, within_s: float = LIMIT_S) -> int:
        """Waits for its end; what takes longer, or ends otherwise than so, is broken."""
        name, began_s = self._logs[process.pid].name, time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(within_s)
        if process.poll() is None:
            self.broken.append(f"{name} hangs: not over after {within_s:g} s {self.said(process)}")
            process.kill()
            process.wait(60)
        elif within_s <= LIMIT_S:
            self.slowest = max(self.slowest, (time.monotonic() - began_s, name))
        self.check(process, codes)
        return process.returncode

    def run(self, *arguments: str, codes: Set[int] = frozenset({0}), **variables: str) -> int:
        return self.end(self.start(*arguments, **variables), codes, within_s=LONGEST_S)

    def kill(self, *arguments: str, after_s: float, **variables: str) -> bool:
        """Runs one and kills it after so long; returns whether it was still at work."""
        process = self.start(*arguments, **variables)
        with suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        was_at_work = process.poll() is None
        process.kill()
        process.wait(60)
        self.check(process, DOCUMENTED | {-9})
        return was_at_work

    def processes(self, name: str = "") -> list[psutil.Process]:
        return [process for process in marked(MARK, self.id) if name in command_of(process)]

    def left(self) -> list[str]:
        deadline = time.monotonic() + 30
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.5)
        return [f"{process.pid} {command_of(process)[:120]}" for process in left]

    def look(self) -> None:
        """Sees whether their files are there as a whole or not at all."""
        report, recipe = self.folder / "report.html", self.folder / "best.yaml"
        if report.exists() and not report.read_text().rstrip().endswith("</html>"):
            self.broken.append("half a report.html")
        if recipe.exists() and not isinstance(_parsed(recipe), dict):
            self.broken.append("half a best.yaml")

    def kill_all(self) -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()

    def check(self, process: Process, codes: Set[int]) -> None:
        self.look()
        name, said = self._logs[process.pid].name, self.said(process)
        self.codes[name.partition("-")[2], process.returncode] += 1
        if process.returncode not in codes or any(trace in said for trace in TRACES):
            self.broken.append(f"{name}, exit code {process.returncode}: {said[-3000:]}")

    def said(self, process: Process) -> str:
        return self._logs[process.pid].read_text(errors="replace")


def frozen(processes: Sequence[psutil.Process], for_s: float) -> None:
    for act in (psutil.Process.suspend, psutil.Process.resume):
        for process in processes:
            with suppress(psutil.Error):
                act(process)
        time.sleep(for_s if act is psutil.Process.suspend else 0)


def _parsed(path: Path) -> object:
    with suppress(yaml.YAMLError):
        return yaml.safe_load(path.read_text())
    return None


def _succeeds(*command: str) -> bool:
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
