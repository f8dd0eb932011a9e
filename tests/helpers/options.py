"""Whether the options given to a program exist, by the program's own help."""

import contextlib
import functools
import io
import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAMS = {
    "tune-speed": ("search", "train", "certify", "leaderboard", "best", "list", "show", "doctor",
                   "report", "watch", "compare", "simulate", "schema", "ablate", "replicate"),
    "ray": ("start", "status", "job", "submit", "logs", "list", "stop"),
    "mlflow": ("server", "db", "upgrade"),
    "python": tuple(str(file.relative_to(ROOT)) for file in ROOT.glob("tests/benchmarks/*.py")),
}  # fmt: skip
"""Programs, and words that may follow before their options."""


def unknown_options(words: Sequence[str]) -> list[str]:
    """Returns the long options in `words`, a command of one of PROGRAMS, that it does not have."""
    program, *rest = words
    path = [program]
    while rest and rest[0] in PROGRAMS[program]:
        path.append(rest.pop(0))
    own = rest[: rest.index("--")] if "--" in rest else rest
    given = {word.split("=")[0] for word in own if word.startswith("--")}
    return sorted(given - _options(tuple(path)))


@functools.cache
def _options(path: tuple[str, ...]) -> frozenset[str]:
    return frozenset(re.findall(r"--[a-z][a-z0-9-]*", _help(path)))


def _help(path: tuple[str, ...]) -> str:
    if path[0] == "python":
        return _help_of_script(ROOT / path[1])
    program = Path(sys.executable).parent / path[0]
    done = subprocess.run(
        [str(program), *path[1:], "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=ROOT,
        env={"PATH": str(program.parent), "COLUMNS": "200", "TERM": "dumb", "HOME": "/tmp"},
    )
    return done.stdout


def _help_of_script(script: Path) -> str:
    """Returns what a script prints for `--help`, in this process: torch is imported once."""
    said, argv, path = io.StringIO(), sys.argv, sys.path.copy()
    sys.argv, sys.path[:0] = [str(script), "--help"], [str(script.parent)]
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path
    return said.getvalue()
