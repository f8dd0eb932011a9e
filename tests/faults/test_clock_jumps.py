"""Where the wall clock may be read; `test_many_trials.py` has a search in which it jumps."""

import ast
import re
from pathlib import Path

import tune_speed

WALL_CLOCK = {
    "time.time",
    "time.time_ns",
    "time.localtime",
    "time.gmtime",
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
}
CLOCKS = re.compile(r"^\s*(?:from|import)\b.*\b(?:time|datetime)\b", re.MULTILINE)
"""What a module that can read a clock imports."""
TIMESTAMPS = {
    "training.trial.utc_now": "when a trial began and ended, for people",
    "reporting.page.site.": "when a page was made, for people",
    "reporting.study.reader.": "when a study was read, for people",
    "runtime.hardware.strangers": "NVML's samples have moments, since 1970",
    "data.cache.": "files have moments, since 1970",
    "data.datasets.image_folder.listed": "folders have moments, since 1970",
    "training.saved_model.keep_in": "compared with the moment of a file",
    "tracking.": "MLflow keeps moments, since 1970",
    "reporting.watch.loop.watch": "passes the moment on to the next",
    "reporting.watch.status.glance": "compares moments that other machines wrote with now",
}
"""Where the wall clock may be read, by the beginning of the function's name, and why."""


def test_wall_clock_is_read_for_dates_only() -> None:
    root = Path(tune_speed.__file__).parent
    readers = {
        f"{'.'.join(path.relative_to(root).with_suffix('').parts)}.{function}"
        for path in root.rglob("*.py")
        if CLOCKS.search(text := path.read_text())
        for function in wall_clock_readers(ast.parse(text))
    }
    assert readers, "the wall clock is read for dates"
    unexplained = {name for name in readers if not name.startswith(tuple(TIMESTAMPS))}
    assert unexplained == set()
    unused = {part for part in TIMESTAMPS if not any(name.startswith(part) for name in readers)}
    assert unused == set()


def test_every_way_to_read_the_wall_clock_is_seen() -> None:
    source = """
import time, datetime as dt
from time import time as now
class Timer:
    def begin(self): self.began = time.time()
def a(): return now()
def b(): return dt.datetime.now(dt.UTC)
def c(default=time.time): return default()
def d(): return time.monotonic()
"""
    assert wall_clock_readers(ast.parse(source)) == {"begin", "a", "b", "c"}


def wall_clock_readers(tree: ast.Module) -> set[str]:
    """Returns the functions of a module that read the wall clock, or hand on what does."""
    names = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if _is_wall_clock(node, names)
    }


def _is_wall_clock(node: ast.AST, names: dict[str, str]) -> bool:
    if isinstance(node, ast.Name):
        return names.get(node.id) in WALL_CLOCK
    if not isinstance(node, ast.Attribute):
        return False
    owner = node.value.attr if isinstance(node.value, ast.Attribute) else None
    owner = node.value.id if isinstance(node.value, ast.Name) else owner
    return f"{owner}.{node.attr}" in WALL_CLOCK
