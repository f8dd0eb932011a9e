"""Training functions on their way to other processes, and what tells them apart."""

import functools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.custom.shipping import calling, packed, source_hash

MODULE = '''
"""A user's module."""
import functools

CALLS = []
SCALE = 3

@functools.cache
def data(size):
    CALLS.append(size)
    return list(range(size))

class Net:
    def out(self, x):
        return helper(x)

def helper(x):
    return SCALE * x

def my_train(params, run):
    return sum(data(4)) + Net().out(params["x"]), len(CALLS)
'''


def module(folder: Path, name: str, text: str = MODULE) -> Any:
    import importlib.util

    (folder / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    # The loader takes another text of the same size and second from the bytecode of the first.
    exec(compile(text, folder / f"{name}.py", "exec"), vars(found))
    return found


def test_function_of_a_file_runs_where_the_file_is_not(tmp_path: Path) -> None:
    text = packed(module(tmp_path, "loop_of_mine").my_train).packed
    program = (
        "import sys; from tune_speed.custom.shipping import calling;"
        "call = calling(sys.argv[1]); print(call({'x': 5}, None), call({'x': 6}, None));"
        "assert 'loop_of_mine' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, text], capture_output=True, text=True, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(21, 1) (24, 1)"  # The cache is there for the second call.


def test_script_with_a_cached_function_runs_elsewhere(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        MODULE + "\nfrom tune_speed.custom.shipping import packed\nprint(packed(my_train).packed)"
    )
    made = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    result: Any = calling(made.stdout.strip())({"x": 5}, None)
    assert result == (21, 1)


def test_hash_is_that_of_the_function_and_what_it_uses(tmp_path: Path) -> None:
    before = source_hash(module(tmp_path, "loop_a").my_train)
    changes = {
        "x * SCALE": ("SCALE * x", "x * SCALE"),
        "SCALE = 4": ("SCALE = 3", "SCALE = 4"),
        "range(1, size)": ("list(range(size))", "list(range(1, size))"),
        "x + 1": ("helper(x)\n\n", "helper(x + 1)\n\n"),
    }
    for name, (old, new) in changes.items():
        assert old in MODULE
        changed = source_hash(module(tmp_path, "loop_a", MODULE.replace(old, new)).my_train)
        assert changed != before, name
    unrelated = MODULE + "\ndef another():\n    return 1\n"
    assert source_hash(module(tmp_path, "loop_a", unrelated).my_train) == before


def test_hash_is_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "loop_b.py").write_text(MODULE)
    program = (
        "import loop_b; from tune_speed.custom.shipping import source_hash;"
        "print(source_hash(loop_b.my_train))"
    )
    command = [sys.executable, "-c", program]
    seen = {
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (lambda params: None, "takes \\(params\\)"),
        (lambda: None, "takes \\(\\)"),
        (lambda params, run, more: None, "takes \\(params, run, more\\)"),
        ("my_train", "must be a function of \\(params, run\\), but got 'my_train'"),
        (None, "but got None"),
    ],
)
def test_other_arguments_are_refused(train: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        packed(train)


def test_function_that_cannot_travel_is_refused() -> None:
    lock = threading.Lock()

    def holds(params: Any, run: Any) -> None:
        with lock:
            pass

    with pytest.raises(ConfigError, match=r"holds cannot: .*lock.*inside it"):
        packed(holds)


def test_function_that_brings_its_data_along_is_refused() -> None:
    data = bytes(20 * 2**20)

    def brings(params: Any, run: Any) -> int:
        return len(data)

    with pytest.raises(ConfigError, match="brings 20 MiB"):
        packed(brings)


def test_partial_functions_and_methods_travel() -> None:
    class Trainer:
        def train(self, params: Any, run: Any) -> Any:
            return params["x"]

    def three(scale: int, params: Any, run: Any) -> Any:
        return scale * params["x"]

    result: Any = calling(packed(Trainer().train).packed)({"x": 2}, None)
    assert result == 2
    result = calling(packed(functools.partial(three, 3)).packed)({"x": 2}, None)
    assert result == 6


def test_what_cannot_be_unpacked_is_an_error_of_the_call() -> None:
    call = calling("AAAA")
    with pytest.raises(Exception, match=r".+"):
        call({}, None)
