"""What lies around the soak's search: its disk, its clock, and other commands; see `bench_soak`."""

import os
import shutil
import struct
import subprocess
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import yaml
from command import TUNE_SPEED, environment
from faulty_runs import MARK
from processes import marked

DISK_MIB = 256
LONGEST_S = 600.0
COMMANDS = {
    "report": ("report", "tiny"),
    "export": ("best", "--study", "tiny", "--export", "best.yaml"),
    "certification": (
        *("certify", "tiny", "--top", "2", "--seeds", "2", "--final", "1", "--final-seeds", "2"),
    ),
}


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
        """What a process needs in its environment."""
        if not self.is_there:
            return {}
        return {"LD_PRELOAD": str(self._library), "CLOCK_SHIFT": str(self._file)}

    def shift(self, by_s: int) -> None:
        """Lets it jump."""
        self._shift_s += by_s
        with os.fdopen(os.open(self._file, os.O_RDWR | os.O_CREAT), "wb") as file:
            file.write(struct.pack("q", self._shift_s))


class Commands:
    """Other commands of the study, beside its search."""

    def __init__(self, folder: Path) -> None:
        self.broken: list[str] = []
        """What went wrong with them."""
        self._folder, self._id = folder, uuid.uuid4().hex

    def kill(self, name: str, *options: str, after_s: float, **variables: str) -> bool:
        """Runs one and kills it after so long; returns whether it was still at work."""
        process = self._start(name, *options, **variables)
        with suppress(subprocess.TimeoutExpired):
            process.wait(after_s)
        was_at_work = process.poll() is None
        process.kill()
        process.wait(60)
        self._check(name, process.returncode)
        return was_at_work

    def succeeds(self, name: str, *options: str, **variables: str) -> bool:
        """Returns whether it ends well."""
        process = self._start(name, *options, **variables)
        began_s = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(LONGEST_S)
        process.kill()
        code = process.wait(60)
        print(f"{name}: exit code {code} after {time.monotonic() - began_s:.0f} s", flush=True)
        self._check(name, code)
        if code != 0:
            print(self._said(name)[-3000:])
        return code == 0

    def left(self) -> list[str]:
        """Returns what of them still runs."""
        deadline = time.monotonic() + 30
        while (left := marked(MARK, self._id)) and time.monotonic() < deadline:
            time.sleep(0.5)
        return [str(process) for process in left]

    def look(self) -> None:
        """Sees whether their files are there as a whole or not at all."""
        report, recipe = self._folder / "report.html", self._folder / "best.yaml"
        if report.exists() and not report.read_text().rstrip().endswith("</html>"):
            self.broken.append("half a report.html")
        if recipe.exists() and not isinstance(_parsed(recipe), dict):
            self.broken.append("half a best.yaml")

    def _start(self, name: str, *options: str, **variables: str) -> "subprocess.Popen[bytes]":
        mine: Mapping[str, str] = {**environment(self._folder), **variables, MARK: self._id}
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                ["env", "--default-signal=INT", TUNE_SPEED, *COMMANDS[name], *options],
                cwd=self._folder,
                env=mine,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _check(self, name: str, code: int) -> None:
        self.look()
        said = self._said(name)
        if "Traceback" in said:
            self.broken.append(f"{name}, exit code {code}: {said[-3000:]}")
        elif code not in (0, -9):
            print(f"        {name} ended itself, exit code {code}: {said[-400:]}", flush=True)

    def _said(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")


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
