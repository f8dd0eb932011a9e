"""What share of small faults, put into a room, do its quick tests notice?

    python tests/mutants.py --sample 80 --seed 1
    python tests/mutants.py --room tuning/policy --sample 80 --seed 1 --calls calls.json

A mutant is the source of one module with one change: another comparison, operator or constant,
`and` for `or`, `return None`, a statement or `not` taken out, a condition reversed. Left alone are
prose (docstrings, texts with a space, f-strings, descriptions), what is logged, annotations,
decorators and `__repr__`.

Each runs in a copy of the working tree, in a fork of this process, which has imported torch, MLflow
and Optuna but neither the package nor tests. Quick tests that call the changed function run until
one fails or hangs, the module's own first, then the shortest. Which test calls what is recorded
once (minutes), and read again from `--calls`; `--record` records the files given again.
"""

import argparse
import ast
import compileall
import copy
import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "tune_speed"
ROOMS = ("core", "runtime", "tuning/policy", "training/step", "tracking/writer")

SWAPPED = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
)
COMPARED = {one: other for pair in SWAPPED for one, other in (pair, pair[::-1])}
CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
SLOW_TO_IMPORT = (
    *("hypothesis", "mlflow.store.tracking.sqlalchemy_store", "optuna", "pandas", "pydantic"),
    "scipy.stats",
)
LOGGERS = {"log", "logger", "logging", "_log", "_logger", "LOG", "LOGGER"}
TYPES = {"Literal", "TypeVar", "cast", "NewType", "ParamSpec"}
PROSE = {"description", "title", "examples", "doc", "help"}

MAX_TESTS_S = 120.0
"""At most so many recorded seconds of tests run for a mutant."""
PYTEST = (
    *("-x", "-q", "-o", "addopts=", "-p", "no:cacheprovider"),
    *("--disable-plugin-autoload", "-p", "pytest_timeout", "-p", "_hypothesis_pytestplugin"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
SLACK_S, SLACK = 20.0, 6.0
"""A test hangs after SLACK_S + SLACK x its recorded seconds."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file; `function` is the qualified name of the function that it is in."""

    file: str
    line: int
    function: str
    old: str
    new: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} `{_short(self.old)}` -> `{_short(self.new)}`"


def _short(code: str) -> str:
    code = " ".join(code.split())
    return code if len(code) <= 70 else code[:67] + "..."


class Mutations(ast.NodeVisitor):
    def __init__(self, file: str, source: str):
        self.file, self.source = file, source
        lengths = map(len, source.encode().splitlines(keepends=True))
        self.starts = [0, *accumulate(lengths)]
        self.names: list[str] = []
        self.function = ""
        self.mutants: list[Mutant] = []
        self.visit(ast.parse(source))

    def change(self, node: Any, new: ast.AST | str) -> None:
        """Notes the mutant in which `new` stands for `node`."""
        data = self.source.encode()
        first = self.starts[node.lineno - 1] + node.col_offset
        last = self.starts[node.end_lineno - 1] + node.end_col_offset
        code = new if isinstance(new, str) else ast.unparse(new)
        if isinstance(new, ast.expr) and not isinstance(new, ast.Constant):
            code = f"({code})"
        changed = (data[:first] + code.encode() + data[last:]).decode()
        with suppress(SyntaxError):
            ast.parse(changed)
            old = data[first:last].decode()
            # Before Python 3.12 places within f-strings may be wrong.
            if isinstance(node, ast.expr):
                there = ast.parse(f"({old}\n)", mode="eval").body
                if ast.dump(there) != ast.dump(node):
                    return
            self.mutants.append(Mutant(self.file, node.lineno, self.function, old, code, changed))

    def with_changed(self, node: Any, **fields: Any) -> None:
        new = copy.copy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        self.change(node, new)

    # What is left alone.

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name == "__repr__":
            return
        names, function = self.names, self.function
        self.names = [*names, node.name]
        self.function = ".".join(self.names)
        for default in filter(None, (*node.args.defaults, *node.args.kw_defaults)):
            self.visit(default)
        self.names = [*self.names, "<locals>"]
        self.visit_all(node.body)
        self.names, self.function = names, function

    def visit_all(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        names = self.names
        self.names = [*names, node.name]
        self.visit_all(node.body)
        self.names = names

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not (isinstance(node.value, ast.Name) and node.value.id in TYPES):
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in PROSE:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in TYPES and not _is_logged(node):
            self.generic_visit(node)

    # What is changed.

    def visit_Compare(self, node: ast.Compare) -> None:
        for index, op in enumerate(node.ops):
            other = COMPARED[type(op)]()
            self.with_changed(node, ops=[*node.ops[:index], other, *node.ops[index + 1 :]])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.with_changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = CALCULATED.get(type(node.op))
        if other and not (_is_text(node.left) or _is_text(node.right)):
            self.with_changed(node, op=other())
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            self.change(node, node.operand)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.change(node, ast.Constant(not value))
        elif isinstance(value, int | float):
            self.change(node, ast.Constant(value + 1 if value in (0, 1) else 2 * value))
        elif isinstance(value, str) and value and " " not in value:
            self.change(node, ast.Constant(f"XX{value}"))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and ast.unparse(node.value) != "None":
            self.change(node, "return None")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or _is_logged(node.value):
            return
        if not isinstance(node.value, ast.Yield | ast.YieldFrom):
            self.change(node, "pass")
        self.generic_visit(node)

    def leave_out(self, node: ast.stmt) -> None:
        self.change(node, "pass")

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.change(node, "pass")
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(to, ast.Attribute | ast.Subscript) for to in node.targets):
            self.change(node, "pass")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.condition(node)

    def condition(self, node: ast.If | ast.While | ast.IfExp | ast.Assert) -> None:
        reversed_below = ast.Compare | ast.Constant | ast.UnaryOp
        if not isinstance(node.test, reversed_below):
            self.change(node.test, ast.UnaryOp(ast.Not(), node.test))
        self.generic_visit(node)

    visit_Raise = visit_Break = visit_Continue = leave_out
    visit_While = visit_IfExp = visit_Assert = condition
    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_logged(node: ast.expr) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return isinstance(node.func.value, ast.Name) and node.func.value.id in LOGGERS


class CallRecorder:
    """Which functions of the rooms a test calls, and how long it takes."""

    def __init__(self, tree: Path, out: Path):
        self.prefix = f"{tree / PACKAGE}{os.sep}"
        self.out = out
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: set[str] = set()
        self.called: set[tuple[str, str]] = set()
        self.collected: set[str] = set()

    def trace(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self.prefix):
            self.called.add((code.co_filename[len(self.prefix) :], code.co_qualname))

    @contextmanager
    def traced(self) -> Iterator[set[str]]:
        """Yields the set that holds what was called after the block, as file::qualified name."""
        self.called, calls = set(), set[str]()
        sys.settrace(self.trace)
        threading.settrace(self.trace)
        try:
            yield calls
        finally:
            sys.settrace(None)
            calls |= {f"{file}::{name}" for file, name in self.called}

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        with self.traced() as self.collected:
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        begun = time.perf_counter()
        with self.traced() as calls:
            done = yield
        seconds = round(time.perf_counter() - begun, 3)
        self.tests[item.nodeid] = {"s": seconds, "calls": sorted(calls)}
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        passed = {test: seen for test, seen in self.tests.items() if test not in self.failed}
        found = {"collected": sorted(self.collected), "tests": passed}
        self.out.write_text(json.dumps(found))


@dataclass
class Tests:
    names: list[str]
    seconds: list[float]
    """As recorded, of each."""

    def options(self) -> list[str]:
        """Returns pytest's arguments; one that hangs fails."""
        return [f"--timeout={SLACK_S + SLACK * max(self.seconds):.0f}", *self.names]


class Copy:
    """A copy of the working tree, in which one file at a time is changed and tests run."""

    def __init__(self, folder: Path):
        self.tree = folder / "tree"
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0"):
            if name and (ROOT / name).is_file():
                target = self.tree / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        compileall.compile_dir(self.tree / PACKAGE, quiet=1)

    def run(self, arguments: list[str], plugin: Callable[[], object], limit_s: float) -> int | None:
        """Returns pytest's exit code in the copy; None if it took too long."""
        child = os.fork()
        if not child:
            code = int(pytest.ExitCode.INTERNAL_ERROR)
            try:
                code = self._run_here(arguments, plugin)
            finally:
                os._exit(code)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                self._end(child)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        self._end(child)
        os.waitpid(child, 0)
        return None

    def _end(self, child: int) -> None:
        """Ends the processes that tests may have left in the child's group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)

    def _run_here(self, arguments: list[str], plugin: Callable[[], object]) -> int:
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(silent, stream)
        os.chdir(self.tree)
        os.environ["PYTHONPATH"] = str(self.tree)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        here = str(Path(__file__).parent)
        sys.path[:] = [str(self.tree), *(p for p in sys.path if p not in ("", str(ROOT), here))]
        made = plugin()
        return int(pytest.main([*PYTEST, *arguments], [made] if made else None))

    def killed(self, mutant: Mutant, tests: Tests) -> bool:
        """Returns whether a test fails, or hangs, with the mutant in place."""
        path = self.tree / mutant.file
        original, times = path.read_bytes(), path.stat()
        path.write_text(mutant.source)
        try:
            limit_s = 2 * SLACK_S + SLACK * sum(tests.seconds)
            code = self.run(tests.options(), lambda: None, limit_s)
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

    def record(self, file: str) -> dict[str, Any]:
        """Returns what the quick tests of a file call, those that pass."""
        out = self.tree / "calls.json"
        out.unlink(missing_ok=True)

        def plugin() -> CallRecorder:
            return CallRecorder(self.tree, out)

        self.run(["--maxfail=1000", "-m", "not slow", file], plugin, 600)
        return json.loads(out.read_text()) if out.is_file() else {"tests": {}}


def quick_files(rooms: Iterable[str]) -> list[str]:
    """Returns the test files of the rooms' folders, and others that name one of the rooms."""
    from longest_first import LONGEST

    named = re.compile("|".join(f"{PACKAGE}.{room.replace('/', '.')}\\b" for room in rooms))
    folders = tuple(f"{room}/" for room in rooms)
    names = [str(p.relative_to(ROOT / "tests")) for p in (ROOT / "tests").rglob("test_*.py")]

    def is_about(name: str) -> bool:
        text = "" if name in LONGEST else (ROOT / "tests" / name).read_text()
        return name.startswith(folders) or named.search(text) is not None

    return [f"tests/{name}" for name in sorted(names) if is_about(name)]


def tests_of(mutant: Mutant, calls: dict[str, Any]) -> list[Tests]:
    """Returns the tests to run, in their order: the module's own, then others.

    Of code outside functions, they are those that call anything of the module."""
    file = mutant.file.removeprefix(f"{PACKAGE}/")
    module = mutant.file.removesuffix(".py").replace("/", ".")
    own = f"tests/{file.rpartition('/')[0]}/"
    # Faces are tested where it is said what they are.
    is_face = file.endswith("__init__.py")
    mirror = "tests/core/test_lazy" if is_face else f"{own}test_{Path(file).stem}"
    key = f"{file}::{mutant.function}"

    def calls_it(names: list[str]) -> bool:
        return key in names if mutant.function else any(n.startswith(f"{file}::") for n in names)

    candidates = []
    for path, seen in calls.items():
        mirrored = path.startswith(mirror)
        named = path.startswith(own) and module in (ROOT / path).read_text()
        maybe = mirrored or named or calls_it(seen.get("collected", []))
        for test, run in seen["tests"].items():
            direct = calls_it(run["calls"])
            if maybe or direct:
                place = (not mirrored, not direct, not path.startswith(own), run["s"])
                candidates.append((place, test))
    first, rest, seconds = Tests([], []), Tests([], []), 0.0
    for (is_other, *_, test_s), test in sorted(candidates):
        seconds += test_s
        if seconds > MAX_TESTS_S and (first.names or rest.names):
            break
        group = rest if is_other else first
        group.names.append(test)
        group.seconds.append(test_s)
    return [group for group in (first, rest) if group.names]


def mutants_of(room: str) -> list[Mutant]:
    found: list[Mutant] = []
    for path in sorted((ROOT / PACKAGE / room).rglob("*.py")):
        found += Mutations(str(path.relative_to(ROOT)), path.read_text()).mutants
    return found


def wilson(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Returns the 95 % interval of a share. Source: Wilson 1927."""
    share, grown = successes / n, 1 + z * z / n
    middle = (share + z * z / (2 * n)) / grown
    half = z * ((share * (1 - share) + z * z / (4 * n)) / n) ** 0.5 / grown
    return middle - half, middle + half


def import_what_takes_long() -> None:
    import torch

    for name in SLOW_TO_IMPORT:
        importlib.import_module(name)
    torch.set_num_threads(1)


def recorded(
    tree: Copy, path: Path | None, files: list[str] | None, rooms: Iterable[str]
) -> dict[str, Any]:
    """Returns which quick test calls what: `files` run anew (None: those not in `path` yet)."""
    calls = json.loads(path.read_text()) if path and path.is_file() else {}
    calls = {file: seen for file, seen in calls.items() if (ROOT / file).is_file()}
    if files is None:
        files = [file for file in quick_files(rooms) if file not in calls]
    for file in files:
        begun = time.monotonic()
        calls[file] = tree.record(file)
        seconds = time.monotonic() - begun
        print(f"{file}: {len(calls[file]['tests'])} tests, {seconds:.0f} s", file=sys.stderr)
        if path:
            path.write_text(json.dumps(calls))
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--room", action="append", help=f"one of {', '.join(ROOMS)}; default: all")
    parser.add_argument("--sample", type=int, default=80, help="mutants a room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calls", type=Path, help="file of what tests call")
    parser.add_argument("--record", nargs="*", metavar="FILE", help="test files to record anew")
    parser.add_argument("--only", metavar="REGEX", help="mutants whose line reads so; no sampling")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(Path(__file__).parent))
    import_what_takes_long()
    with tempfile.TemporaryDirectory() as folder:
        tree = Copy(Path(folder))
        rooms = arguments.room or ROOMS
        calls = recorded(tree, arguments.calls, arguments.record, rooms)
        if arguments.sample:
            for room in rooms:
                measure(tree, calls, room, arguments)


def measure(tree: Copy, calls: dict[str, Any], room: str, arguments: argparse.Namespace) -> None:
    """Prints a room's share and its survivors."""
    everything = mutants_of(room)
    if arguments.only:
        sample = [mutant for mutant in everything if re.search(arguments.only, str(mutant))]
    else:
        size = min(arguments.sample, len(everything))
        sample = random.Random(arguments.seed).sample(everything, size)
    outcomes, begun = list[bool](), time.monotonic()
    for mutant in sample:
        groups = tests_of(mutant, calls)
        outcomes.append(any(tree.killed(mutant, tests) for tests in groups))
        if not outcomes[-1]:
            count = sum(len(tests.names) for tests in groups)
            print(f"survives {mutant} ({count} tests)", flush=True)
    n, killed = len(outcomes), sum(outcomes)
    low, high = wilson(killed, n) if n else (0.0, 1.0)
    print(
        f"{room}: {killed} of {n} killed ({len(everything)} in all), {killed / max(n, 1):.1%}"
        f" [{low:.1%}, {high:.1%}], {time.monotonic() - begun:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
