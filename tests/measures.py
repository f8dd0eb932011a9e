"""Measures of how a package is laid out: `python tests/measures.py [FOLDER] [--worst N]`.

Counted in every `.py` file under the folder:

- lines: all of them, as `wc -l` does.
- modules a folder: the files directly in it without `__init__.py`.
- entries at the top: rooms and modules.
- private functions used once, of all: functions and methods named `_name`, nested ones too, to
  which exactly one name or attribute refers, as a share of *all* functions and methods (29 % at
  commit 604cb59, 16 % in Optuna 5.0, 5 % in httpx 0.28). References count in the function's own
  module and in modules that import its name, so a method that a subclass elsewhere calls besides
  counts as used once.
- comment lines: lines that hold nothing but a comment, per 100 lines; not `# type:`, `# noqa`.
- function lengths: from `def` to the last line, without decorators and docstring.

`structure.py` says how code, parameters, attributes and circles are counted. The limits lie in
`limits.json`, with the goals to reach; from commit to commit they only fall. The exit code is 1 if
a measure exceeds its limit.
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import structure

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "tune_speed"
LIMITS = TESTS / "limits.json"
MODULE_LINES = 400
NO_CODE = ("README.md", "CHANGELOG.md", "py.typed")
"""A module of more lines is listed, to be looked at again."""
INLINE_LINES = 5
"""A private function used once whose body has at most these lines is a candidate to inline."""

MAY_BE_COMMENT = re.compile(r"^\s*#", re.MULTILINE)
NO_COMMENT = re.compile(r"#\s*(type:|noqa)")
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """A function or method, where it is, and its lines without the docstring."""

    name: str
    file: str
    line: int
    lines: int
    body_lines: int

    @property
    def private(self) -> bool:
        return self.name.startswith("_") and not self.name.endswith("__")

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"


@dataclass(frozen=True)
class Module:
    """What one file holds; `references` counts the names and attributes in it."""

    file: str
    lines: int
    comments: int
    functions: tuple[Function, ...]
    references: Counter[str]
    imported: frozenset[str]


@dataclass(frozen=True)
class Measure:
    """A figure, its limits, and the goal to reach; one without limits is for information."""

    name: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    reach: float | None = None
    note: str = ""

    @property
    def passes(self) -> bool:
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    @property
    def target(self) -> str:
        if self.at_most is None:
            return ""
        low = "at most" if self.at_least is None else f"{self.at_least:g} to"
        goal = "" if self.reach is None else f", goal {self.reach:g}"
        return f"{low} {self.at_most:g}{goal}"


def room_of(file: str) -> str:
    """Returns the folder at the top in which `file` lies, or `.`."""
    return file.split("/")[0] if "/" in file else "."


def read_package(folder: Path) -> list[Module]:
    """Returns the modules under `folder`, with paths relative to it."""
    files = sorted(folder.rglob("*.py"))
    return [read_module(file.relative_to(folder).as_posix(), file.read_text()) for file in files]


def read_module(file: str, text: str) -> Module:
    """Returns what the source `text` of `file` holds."""
    nodes = list(ast.walk(ast.parse(text)))
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    attributes = [node.attr for node in nodes if isinstance(node, ast.Attribute)]
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return Module(
        file=file,
        lines=text.count("\n"),
        comments=count_comments(text),
        functions=tuple(as_function(n, file) for n in nodes if isinstance(n, FunctionNode)),
        references=Counter(names + attributes),
        imported=frozenset(alias.name for node in imports for alias in node.names),
    )


def as_function(node: FunctionNode, file: str) -> Function:
    last = node.end_lineno or node.lineno
    first = node.body[0]
    docstring = 0
    if ast.get_docstring(node, clean=False) is not None:
        docstring = (first.end_lineno or first.lineno) - first.lineno + 1
    body = last - first.lineno + 1 - docstring
    return Function(node.name, file, node.lineno, last - node.lineno + 1 - docstring, body)


def count_comments(text: str) -> int:
    """Returns how many lines of `text` hold a comment and nothing else."""
    if not MAY_BE_COMMENT.search(text):
        return 0
    return sum(
        token.type == tokenize.COMMENT
        and not token.line[: token.start[1]].strip()
        and not NO_COMMENT.match(token.string)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def used_once(modules: list[Module]) -> list[Function]:
    """Returns the private functions to which exactly one name or attribute refers."""

    def uses(name: str, home: Module) -> int:
        return sum(m.references[name] for m in modules if m is home or name in m.imported)

    private = ((f, module) for module in modules for f in module.functions if f.private)
    return [function for function, home in private if uses(function.name, home) == 1]


def modules_by_folder(modules: list[Module]) -> Counter[str]:
    """Returns how many modules lie directly in each folder that has any."""
    files = (Path(m.file) for m in modules)
    return Counter(f.parent.as_posix() for f in files if f.name != "__init__.py")


def top_entries(folder: Path) -> list[str]:
    """Returns the files at the top of `folder`, and its folders that hold a file."""

    def holds_a_file(path: Path) -> bool:
        paths = (p for p in [path, *path.rglob("*")] if p.is_file())
        return any("__pycache__" not in p.relative_to(folder).parts for p in paths)

    return sorted(p.name for p in folder.iterdir() if p.name not in NO_CODE and holds_a_file(p))


def measure(folder: Path) -> list[Measure]:
    """Returns the measures of the package in `folder`, with their limits."""
    modules = read_package(folder)
    folders = modules_by_folder(modules)
    largest, files = folders.most_common(1)[0]
    functions = [f for m in modules for f in m.functions]
    longest = max(functions, key=lambda f: f.lines)
    figures = {
        "lines in the package": sum(m.lines for m in modules),
        "modules a folder, median": median(folders.values()),
        "modules a folder, max": files,
        "entries at the top": len(top_entries(folder)),
        "private functions used once, % of all": 100 * len(used_once(modules)) / len(functions),
        **text_figures(folder, modules),
        **length_figures([f.lines for f in functions]),
        f"modules over {MODULE_LINES} lines": len(long_modules(modules)),
        **structure_figures(structure.read_sources(folder)),
    }
    notes = {"modules a folder, max": largest, "function lines, longest": str(longest)}
    limits = json.loads(LIMITS.read_text())
    return [
        Measure(name, value, **limits.get(name, {}), note=notes.get(name, ""))
        for name, value in figures.items()
    ]


def text_figures(folder: Path, modules: list[Module]) -> dict[str, float]:
    readme = folder.parent / "README.md"
    tests = (file.read_text().count("\n") for file in (folder.parent / "tests").rglob("*.py"))
    comments = sum(m.comments for m in modules)
    return {
        "comment lines per 100": 100 * comments / sum(m.lines for m in modules),
        "README, lines": readme.read_text().count("\n") if readme.exists() else 0,
        "lines in the tests": sum(tests),
    }


def length_figures(lines: list[int]) -> dict[str, float]:
    lengths = sorted(lines)

    def over(limit: int) -> float:
        return 100 * sum(length > limit for length in lengths) / len(lengths)

    return {
        "function lines, median": median(lengths),
        "function lines, 90th percentile": lengths[9 * len(lengths) // 10],
        "function lines, longest": lengths[-1],
        "functions over 30 lines, %": over(30),
        "functions over 40 lines, %": over(40),
    }


def structure_figures(sources: list[structure.Source]) -> dict[str, float]:
    lines = sum(each.text.count("\n") for each in sources)
    imports = sum(len(each.import_lines()) for each in sources)
    naming = {
        f"modules that name {feature}": structure.num_naming(sources, feature)
        for feature in structure.FEATURES
    }
    return {
        "lines of code": sum(each.code_lines() for each in sources),
        "modules": len(sources),
        "circles": len(structure.circles(sources)),
        "functions of more than 6 parameters": sum(each.many_parameters(6) for each in sources),
        "classes of more than 15 attributes": sum(each.many_attributes(15) for each in sources),
        "import lines, %": 100 * imports / lines,
        **naming,
    }


def long_modules(modules: list[Module]) -> dict[str, int]:
    """Returns the lines of each module over the limit, the longest first."""
    found = sorted((m for m in modules if m.lines > MODULE_LINES), key=lambda m: -m.lines)
    return {m.file: m.lines for m in found}


def worst(modules: list[Module], count: int) -> dict[str, dict[str, dict[str, int]]]:
    """Returns, for each room, its `count` largest folders, longest functions and candidates.

    A folder's figure is its modules; a function's is its lines, a candidate's those of its body.
    """
    folders = modules_by_folder(modules).most_common()
    candidates = [f for f in used_once(modules) if f.body_lines <= INLINE_LINES]
    functions = sorted((f for m in modules for f in m.functions), key=lambda f: -f.lines)

    def in_room(room: str, found: Iterable[Function]) -> list[Function]:
        return [f for f in found if room_of(f.file) == room][:count]

    def of(room: str) -> dict[str, dict[str, int]]:
        inside = [pair for pair in folders if pair[0].split("/")[0] == room]
        return {
            "modules": dict(inside[:count]),
            "longest functions": {str(f): f.lines for f in in_room(room, functions)},
            "used once and small": {str(f): f.body_lines for f in in_room(room, candidates)},
        }

    return {room: of(room) for room in sorted({room_of(m.file) for m in modules})}


def print_measures(measures: list[Measure]) -> None:
    """Prints a line a measure: name, figure, target, whether it is met."""
    for m in measures:
        verdict = "" if m.at_most is None else "pass" if m.passes else "FAIL"
        figure = f"{m.value:,.2f}".removesuffix(".00")
        print(f"{m.name:38} {figure:>8}  {m.target:26} {verdict:4}  {m.note}".rstrip())


def print_figures(title: str, figures: dict[str, int]) -> None:
    if figures:
        print(f"  {title}", *(f"    {v:>5}  {k}" for k, v in figures.items()), sep="\n")


def main() -> int:
    """Prints the measures; returns 1 if one misses its target."""
    parser = argparse.ArgumentParser(description="Measures of how a package is laid out.")
    parser.add_argument("folder", nargs="?", type=Path, default=PACKAGE)
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="List N of each, by room")
    arguments = parser.parse_args()
    modules = read_package(arguments.folder)
    measures = measure(arguments.folder)
    rooms = worst(modules, arguments.worst) if arguments.worst else {}
    print_measures(measures)
    print_figures(f"modules over {MODULE_LINES} lines", long_modules(modules))
    for room, lists in rooms.items():
        print(f"\n{room}/")
        for title, figures in lists.items():
            print_figures(title, figures)
    return 0 if all(m.passes for m in measures) else 1


if __name__ == "__main__":
    sys.exit(main())
