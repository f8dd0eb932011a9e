"""The measures of the package's layout, that their limits only fall, and what is counted."""

import itertools
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import measures
import pytest
import structure

LIMITS: dict[str, dict[str, float]] = json.loads(measures.LIMITS.read_text())
PLANNED = {
    "lines in the package": (72300, 68000, 69200, 70200, 67800, 68400, 68800, 61000, 61200, 60500),
    "lines in the tests": (92800, 87000, 88500, 89700, 89500, 90300, 84500, 85000, 84000),
    "lines of code": (41900, 43100, 42900),
}
"""What the limits of lines may be: those of the architecture's plan, step by step.

Of code the plan says only where it ends. Where a feature may bring lines, all may be code.
"""

HELPERS = '''"""A module."""

# A reason of two
# lines.
LIMIT = 3  # beside code
TEXT = """
# inside a string
"""
import os  # noqa
# noqa: E402
# type: ignore


def _once(x: int) -> int:
    """Says what it does.

    At length.
    """
    return x + LIMIT


def _twice() -> int:
    return 1


def _never() -> int:
    return 2


def _elsewhere() -> int:
    return 3


def public() -> int:
    return _once(_twice()) + _twice() + _elsewhere()


class Thing:
    def __init__(self) -> None:
        self._set()

    def _set(self) -> None:
        def _inner() -> int:
            return 4

        self.value = _inner()
'''

OTHER = """from made_up.helpers import _elsewhere


def other() -> int:
    return _elsewhere()


def _once() -> int:
    return 1
"""


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """Returns a package of five modules in three folders, next to a README of three lines."""
    folder = tmp_path / "made_up"
    long = "def long() -> None:\n" + "    print()\n" * 45
    files = {
        "__init__.py": "",
        "py.typed": "",
        "README.md": "A map.\n",
        "helpers.py": HELPERS,
        "__pycache__/helpers.pyc": "",
        "room/__init__.py": "",
        "room/other.py": OTHER,
        "room/long.py": long,
        "room/large.py": "x = 1\n" * 401,
        "room/inner/deep.py": "x = 1\n",
        "left/__pycache__/gone.pyc": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (tmp_path / "README.md").write_text("one\ntwo\nthree\n")
    return folder


@pytest.fixture(scope="module")
def package() -> dict[str, measures.Measure]:
    return {m.name: m for m in measures.measure(measures.PACKAGE)}


def value(folder: Path, name: str) -> float:
    [found] = [m.value for m in measures.measure(folder) if m.name == name]
    return found


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(measures.__file__), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", LIMITS)
def test_the_package_keeps_its_limit(package: dict[str, measures.Measure], name: str) -> None:
    found = package[name]
    assert found.passes, f"{name}: {found.value:g}, {found.target} {found.note}"


@pytest.mark.parametrize("name", PLANNED)
def test_a_limit_of_lines_is_planned(name: str) -> None:
    assert LIMITS[name]["at_most"] in PLANNED[name]


def test_other_limits_only_fall() -> None:
    now = (measures.LIMITS.read_text(), *limits_of_history(2))
    for new, old in itertools.pairwise(map(json.loads, now)):
        others = old.keys() & new.keys() - PLANNED.keys()
        rose = [name for name in others if rises(new[name], old[name])]
        assert (rose, old.keys() - new.keys()) == ([], set())


def rises(new: dict[str, float], old: dict[str, float]) -> bool:
    return new["at_most"] > old["at_most"] or new.get("at_least", 0) < old.get("at_least", 0)


def limits_of_history(count: int) -> list[str]:
    """Returns the file of limits as the last commits that changed it left it, newest first."""
    root = measures.TESTS.parent
    file = measures.LIMITS.relative_to(root).as_posix()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout

    commits = git("log", f"-{count}", "--format=%H", "--", file).split()
    return [git("show", f"{commit}:{file}") for commit in commits]


def test_what_is_counted_of_folders_and_lines(made_up: Path) -> None:
    """Caches, and folders that hold nothing else, are left out."""
    values = {m.name: m.value for m in measures.measure(made_up)}
    lines = HELPERS.count("\n") + OTHER.count("\n") + 46 + 401 + 1
    assert values["lines in the package"] == lines
    assert values["README, lines"] == 3
    assert values["modules a folder, median"] == 1
    assert values["modules a folder, max"] == 3
    assert values["comment lines per 100"] == pytest.approx(200 / lines)
    modules = measures.read_package(made_up)
    assert measures.modules_by_folder(modules) == {".": 1, "room": 3, "room/inner": 1}
    assert measures.top_entries(made_up) == ["__init__.py", "helpers.py", "room"]
    assert measures.long_modules(modules) == {"room/large.py": 401}


def test_private_functions_used_once(made_up: Path) -> None:
    found = measures.used_once(measures.read_package(made_up))
    assert {(f.file, f.name) for f in found} == {
        ("helpers.py", "_once"),
        ("helpers.py", "_set"),
        ("helpers.py", "_inner"),
    }
    functions = 8 + 2 + 1
    share = value(made_up, "private functions used once, % of all")
    assert share == pytest.approx(100 * 3 / functions)


def test_another_use_takes_a_function_off_the_list(made_up: Path) -> None:
    more = "\n\nprint(_once(2))\n"
    (made_up / "helpers.py").write_text(HELPERS + more)
    found = measures.used_once(measures.read_package(made_up))
    assert {f.name for f in found} == {"_set", "_inner"}


def test_only_lines_that_are_a_comment_count() -> None:
    assert measures.count_comments(HELPERS) == 2
    assert measures.count_comments("f(\n    1,\n    # why\n    2,  # not\n)\n") == 1


def test_a_docstring_is_no_line_of_its_function() -> None:
    once = next(f for f in measures.read_module("a.py", HELPERS).functions if f.name == "_once")
    assert (once.lines, once.body_lines) == (2, 1)


def test_lines_of_functions(made_up: Path) -> None:
    longest = next(m for m in measures.measure(made_up) if m.name == "function lines, longest")
    assert (longest.value, longest.note) == (46, "room/long.py:1 long")
    assert value(made_up, "functions over 30 lines, %") == pytest.approx(100 / 11)
    assert value(made_up, "functions over 40 lines, %") == pytest.approx(100 / 11)
    assert value(made_up, "function lines, median") == 2


@pytest.mark.parametrize(
    ("figure", "passes"), [(1.9, False), (2, True), (3, True), (3.1, False)], ids=str
)
def test_a_range_has_two_ends(figure: float, passes: bool) -> None:
    assert measures.Measure("any", figure, 3, at_least=2).passes is passes


def test_the_worst_are_listed_by_room(made_up: Path) -> None:
    rooms = measures.worst(measures.read_package(made_up), 1)
    assert list(rooms) == [".", "room"]
    assert rooms["room"] == {
        "modules": {"room": 3},
        "longest functions": {"room/long.py:1 long": 46},
        "used once and small": {},
    }
    assert rooms["."]["used once and small"] == {"helpers.py:14 _once": 1}


def test_the_script_prints_a_verdict_for_each_target(made_up: Path) -> None:
    done = run(made_up, "--worst", "2")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert any(line.startswith("README, lines") and "pass" in line for line in lines)
    assert any(line.startswith("functions over 40") and line.endswith("FAIL") for line in lines)
    assert any("helpers.py:14 _once" in line for line in lines)


def test_the_exit_code_is_zero_where_all_targets_are_met(tmp_path: Path) -> None:
    folder = tmp_path / "made_up"
    folder.mkdir()
    (folder / "one.py").write_text("# Why.\n" + "x = 1\n" * 38 + "def f() -> int:\n    return 1\n")
    done = run(folder)
    assert done.returncode == 0, done.stdout


SOURCE = '''"""A module."""
# A reason.

import os
from a import (
    b,
)


class Thing:
    """A thing."""

    field: int

    def fill(self, a, *, b):  # two parameters
        self.one = self.two = 1
        self.one += 1
        other.three = 1
        """Not its docstring, but a text all the same."""
'''


def test_code_is_what_is_no_text_comment_blank_or_import() -> None:
    source = structure.Source("a", SOURCE)
    assert source.code_lines() == 6
    assert source.import_lines() == {4, 5, 6, 7}


def test_parameters_and_attributes_are_without_self() -> None:
    source = structure.Source("a", SOURCE)
    assert [source.many_parameters(limit) for limit in (1, 2)] == [1, 0]
    assert [source.many_attributes(limit) for limit in (1, 2)] == [1, 0]


def test_modules_that_import_one_another_are_a_circle() -> None:
    texts = {
        "p": "from p import a",
        "p.a": "from p.b import name",
        "p.b": "def f():\n    import p.c",
        "p.c": "from p import a",
        "p.d": "from p import a",
    }
    sources = [structure.Source(name, text) for name, text in texts.items()]
    assert structure.circles(sources) == [{"p.a", "p.b", "p.c"}]


def test_a_feature_is_named_once_a_module() -> None:
    sources = [structure.Source("a", "steer(steered)"), structure.Source("b", "steel")]
    assert structure.num_naming(sources, "steering") == 1


def test_every_room_is_packaged() -> None:
    root = Path(__file__).parents[1]
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    rooms = {
        ".".join(path.parent.relative_to(root).parts)
        for path in (root / "tune_speed").rglob("__init__.py")
    }
    assert set(listed) - {"tune_speed.search_spaces"} == rooms
    assert len(listed) == len(set(listed))
