"""What `measures.py` counts of a package's syntax trees: code, parameters, attributes, circles.

- lines of code: lines that are not blank, and not part of a docstring, comment or import.
- parameters: all that a function takes, without `self` and `cls`.
- attributes: what the methods of a class assign on `self`.
- circles: groups of modules each of which imports, at whatever level, all others of its group.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FEATURES = {
    "several devices": r"num_devices|world_size|\branks?\b|multi_gpu|distributed",
    "least cost": r"[Cc]ost_?[Cc]lock|device_types|\bprices\b|least_cost|\bRates\b",
    "the best within a time": r"[Bb]est_?[Ww]ithin|within_s|target\.best|maximise",
    "steering": r"[Ss]teer|\bhelm\b",
    "re-clocking": r"[Rr]e-?clock|\btimed\(",
}
"""Identifiers by which a module is known to deal with a feature."""


@dataclass(frozen=True)
class Source:
    """One module: its dotted name and its text."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    def import_lines(self) -> set[int]:
        found = (n for n in self.nodes if isinstance(n, ast.Import | ast.ImportFrom))
        return {line for node in found for line in lines_of(node)}

    def code_lines(self) -> int:
        lines = enumerate(self.text.splitlines(), start=1)
        written = {n for n, line in lines if line.strip() and not line.lstrip().startswith("#")}
        return len(written - self.import_lines() - self._text_lines())

    def many_parameters(self, limit: int) -> int:
        functions = (n.args for n in self.nodes if isinstance(n, FUNCTIONS))
        return sum(len(parameters(each)) > limit for each in functions)

    def many_attributes(self, limit: int) -> int:
        classes = (n for n in self.nodes if isinstance(n, ast.ClassDef))
        return sum(len(attributes(each)) > limit for each in classes)

    def _text_lines(self) -> set[int]:
        bodies = (n.body for n in self.nodes if isinstance(n, DEFINITIONS))
        texts = (statement for body in bodies for statement in body if is_text(statement))
        return {line for statement in texts for line in lines_of(statement)}


def read_sources(folder: Path) -> list[Source]:
    files = sorted(folder.rglob("*.py"))
    return [Source(module_name(file, folder), file.read_text()) for file in files]


def module_name(file: Path, folder: Path) -> str:
    parts = file.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def lines_of(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def is_text(node: ast.stmt) -> bool:
    is_constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_constant and isinstance(node.value.value, str)


def parameters(arguments: ast.arguments) -> list[str]:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [each.arg for each in every if each.arg not in ("self", "cls")]


def attributes(node: ast.ClassDef) -> set[str]:
    """Returns what is assigned on `self` within a class."""
    stored = (n for n in ast.walk(node) if isinstance(n, ast.Attribute))
    return {
        each.attr
        for each in stored
        if isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def num_naming(sources: list[Source], feature: str) -> int:
    """Returns how many modules name a feature."""
    return sum(re.search(FEATURES[feature], each.text) is not None for each in sources)


def circles(sources: list[Source]) -> list[set[str]]:
    """Returns the groups of modules that import one another."""
    names = {each.name for each in sources}
    graph = {each.name: set(imported(each, names)) - {each.name} for each in sources}
    reached = {name: reachable(graph, name) for name in graph}
    groups = {
        frozenset({name} | {other for other in reached[name] if name in reached[other]})
        for name in graph
    }
    return [set(group) for group in groups if len(group) > 1]


def imported(source: Source, names: set[str]) -> Iterator[str]:
    """Yields the modules of `names` that a module imports."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module in names:
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (each if each in names else node.module for each in inner)


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    left = [start]
    while left:
        fresh = graph[left.pop()] - seen
        seen |= fresh
        left += fresh
    return seen
