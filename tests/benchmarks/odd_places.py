"""A search in ordinary odd places: each runs, or is refused in one line that says what to set.

    python tests/benchmarks/odd_places.py [--only NAME]

In each place `tune-speed search` runs two trials of a second on digits, from nothing. Prints how
each ended, and exit code 1 if one ended with a traceback, in more than three lines of an error, or
not within four minutes. Places that take root (a small /dev/shm, another user) are left out, by
name, where that is not who we are.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1] / "helpers")]

from command import TINY_STUDY, TUNE_SPEED  # noqa: E402

LONGEST_S, MOST_LINES = 240, 3
STUDY = TINY_STUDY.replace("trials: 6", "trials: 2").replace("high: 10", "high: 2")
# To be run with an interpreter that others may read: from root's home, another one is found.
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
READ_ONLY = 'mount -t tmpfs -o ro none "$HOME" && exec "$@"'
SMALL_SHM = 'mount -t tmpfs -o size=16m none /dev/shm && exec "$@"'


class Place(NamedTuple):
    """Where a search is run."""

    variables: Mapping[str, str | None] = MappingProxyType({})
    """Of the environment; None: unset."""
    prefix: Sequence[str] = ()
    """A command that runs another one."""
    needs_root: bool = False


def places(folder: Path) -> dict[str, Place]:
    """Returns the places by name."""
    spaced, deep = folder / "a b", folder / ("x" * 120) / ("y" * 100)
    for each in (spaced, deep):
        each.mkdir(parents=True)
    gone = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    return {
        "as it is": Place(),
        "HOME unset": Place({"HOME": None}),
        "HOME missing": Place({"HOME": "/nonexistent/home"}),
        "HOME read-only": Place(
            {"HOME": str(spaced)}, ("unshare", "-m", "sh", "-c", READ_ONLY, "sh"), needs_root=True
        ),
        "LANG unset": Place({"LANG": None, "LC_ALL": None, "PYTHONUTF8": "0"}),
        "LC_ALL=C": Place({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
        "python -O": Place({"PYTHONOPTIMIZE": "1"}),
        "TMPDIR with a space": Place({"TMPDIR": str(spaced)}),
        "TMPDIR of 250 characters": Place({"TMPDIR": str(deep)}),
        "TMPDIR missing": Place({"TMPDIR": str(folder / "none")}),
        "256 open files": Place(prefix=("prlimit", "--nofile=256")),
        "64 open files": Place(prefix=("prlimit", "--nofile=64")),
        "a folder that was deleted": Place(prefix=("sh", "-c", gone, "sh")),
        "a folder that cannot be written": Place(prefix=("env", "-C", "/proc")),
        "/dev/shm of 16 MB": Place(
            prefix=("unshare", "-m", "sh", "-c", SMALL_SHM, "sh"), needs_root=True
        ),
        "a user who is not root": Place({"HOME": "/nonexistent"}, NOBODY, needs_root=True),
    }


def ran(place: Place, folder: Path) -> tuple[int, float, str, str]:
    """Returns exit code, seconds, standard output and errors of the search."""
    folder.mkdir()
    folder.chmod(0o777)
    study = folder / "tiny.yaml"
    study.write_text(STUDY)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TUNE_SPEED", "MLFLOW"))}
    own = {"TUNE_SPEED_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1", **place.variables}
    variables = {name: value for name, value in {**kept, **own}.items() if value is not None}
    began_s = time.monotonic()
    process = subprocess.Popen(
        [*place.prefix, TUNE_SPEED, "search", str(study)],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"\nnot over after {LONGEST_S} s"
    return process.returncode, time.monotonic() - began_s, out, err


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help="of this place alone")
    options = parser.parse_args()
    broken = []
    with tempfile.TemporaryDirectory(prefix="odd-") as name:
        Path(name).chmod(0o755)
        for number, (title, place) in enumerate(places(Path(name)).items()):
            if options.only not in (None, title):
                continue
            if place.needs_root and os.geteuid():
                print(f"{title:34} left out: takes root")
                continue
            code, took_s, out, err = ran(place, Path(name) / str(number))
            has_run = "results:" in out
            last = "it ran" if has_run else ([*out.splitlines(), *err.splitlines()] or [""])[-1]
            print(f"{title:34} {code:4} {took_s:6.1f} s  {last[:160]}", flush=True)
            lines = [line for line in err.splitlines() if line.strip()]
            is_refused = "error: " in err and len(lines) <= MOST_LINES
            if "Traceback" in err or took_s > LONGEST_S or not (has_run or is_refused):
                broken.append(title)
                print(err[-3000:])
    print(f"broken: {', '.join(broken) or 'none'}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
