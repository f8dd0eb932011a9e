"""Every package that is imported, wherever in the code, is one that an install brings."""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
EXTRAS = {
    "custom/lightning.py": "lightning",
    "custom/transformers.py": "transformers",
    "experiments/exports/onnx_graph.py": "onnx",
    "testing/__init__.py": "test",
}
"""Modules that need an extra; the last one serves a plugin's own tests."""
INSTEAD = {"custom/lightning.py": {"pytorch_lightning"}}
"""What serves them as well, where a user has that."""
CALLS = {"import_module", "find_spec", "__import__", "importorskip"}


def declared(extra: str | None = None) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"].get(extra, ())]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def imported(tree: ast.AST) -> Iterator[str]:
    """Yields the top-level modules that are imported at the top, in functions, or by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in CALLS and isinstance(node.args[0].value, str):
                yield node.args[0].value.partition(".")[0]


def undeclared(*, without: str = "", brought: Mapping[str, list[str]]) -> dict[str, set[str]]:
    """Returns modules whose package is not declared, with the files that import them."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tune_speed").rglob("*.py")):
        file = path.relative_to(ROOT / "tune_speed").as_posix()
        names = declared(EXTRAS.get(file)) - {without}
        modules = set(imported(ast.parse(path.read_text()))) - INSTEAD.get(file, set())
        for module in modules - {"tune_speed"} - sys.stdlib_module_names:
            if names.isdisjoint(map(canonicalize_name, brought.get(module, [module]))):
                found.setdefault(module, set()).add(file)
    return found


def test_every_imported_package_is_declared() -> None:
    assert undeclared(brought=packages_distributions()) == {}


@pytest.mark.parametrize(
    ("distribution", "module"),
    [
        ("nvidia-ml-py", "pynvml"),
        ("grpcio", "grpc"),
        ("sqlalchemy", "sqlalchemy"),
        ("markupsafe", "markupsafe"),
        ("lightning", "lightning"),
    ],
)
def test_one_that_is_not_declared_any_more_is_found(distribution: str, module: str) -> None:
    found = undeclared(without=distribution, brought=packages_distributions())
    assert found.keys() == {module}
