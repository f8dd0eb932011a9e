"""Whether documents name options that a program has, and names that the glossary has."""

import contextlib
import functools
import io
import os
import re
import runpy
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import tune_speed

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
    # MLflow has two distributions that name the same function.
    command = next(iter(entry_points(group="console_scripts", name=path[0])))
    with warnings.catch_warnings(), _wide_terminal():
        warnings.simplefilter("ignore")  # Of a program's own imports.
        return _printed(command.load(), [path[0], *path[1:], "--help"])


@contextlib.contextmanager
def _wide_terminal() -> Iterator[None]:
    before = dict(os.environ)
    os.environ |= {"COLUMNS": "200", "TERM": "dumb"}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _help_of_script(script: Path) -> str:
    def run() -> None:
        runpy.run_path(str(script), run_name="__main__")

    path = sys.path.copy()
    sys.path[:0] = [str(script.parent)]
    try:
        return _printed(run, [str(script), "--help"])
    finally:
        sys.path[:] = path


def _printed(run: Callable[[], object], words: list[str]) -> str:
    """Returns what a program prints, in this process: torch and Ray are imported once."""
    said, before = io.StringIO(), sys.argv
    sys.argv = words
    try:
        with contextlib.redirect_stdout(said):
            code = run()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.argv = before
    assert not code, (words, code)
    return said.getvalue()


# --- Whether the names in a store are those of the glossary


def documented_tags() -> list[str]:
    """Returns the tags that the table in the README of reports explains."""
    readme = Path(tune_speed.__file__).parent / "reporting" / "README.md"
    return re.findall(r"^\| `([^`]+)` \| ..+ \|$", readme.read_text(), re.MULTILINE)


def undocumented(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Returns those of `names` that fit none of `known`, in which `<…>` stands for anything."""
    patterns = [re.sub(r"<[^>]*>", ".+", re.escape(name)) for name in known]
    whole = re.compile(f"(?:{'|'.join(patterns)})(?:/seed_\\d+)?")
    return [name for name in names if whole.fullmatch(name) is None]
