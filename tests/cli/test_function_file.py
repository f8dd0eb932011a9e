"""`--train FILE.py:FUNCTION`: what runs, and what is said of what cannot."""

import inspect
import os
from pathlib import Path

import pytest

from tune_speed.api.inputs import own_study_from
from tune_speed.cli.search import again_with, function_of
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.custom.shipping import packed
from tune_speed.study.file import recipe_of, study_of
from tune_speed.study.yaml import scan_yaml

LOOP = '''"""A training function."""

NUMBER = 3


def helper(step):
    return step * NUMBER


def my_train(params, run):
    return helper(params["rate"])
'''
OWN = """
workload: {target: {value: 0.9}, mode: anytime, max_train_s: 20}
recipe: {rate: {low: 0.5, high: 2.0}, depth: 3}
search: {trials: 3}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_loop.py").write_text(LOOP)
    return tmp_path


def problem_of(name: str) -> Problem:
    with pytest.raises(ConfigError) as caught:
        function_of(name)
    (problem,) = caught.value.problems
    return problem


def test_function_of_a_file_is_found_and_told_from_another_by_its_source(folder: Path) -> None:
    train = function_of("my_loop.py:my_train")
    assert train({"rate": 2}, None) == 6
    assert inspect.getsource(train).startswith("def my_train(params, run):")
    assert function_of(f"{folder}/my_loop.py:my_train") is train
    before = packed(train).source_hash
    times = (folder / "my_loop.py").stat()
    (folder / "my_loop.py").write_text(LOOP.replace("NUMBER = 3", "NUMBER = 4"))
    # Same size and time of change, for which Python would take old bytecode.
    os.utime(folder / "my_loop.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    changed = function_of("my_loop.py:my_train")
    assert changed({"rate": 2}, None) == 8
    assert packed(changed).source_hash != before
    assert not (folder / "__pycache__").exists()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("my_loop.py", "Name the function too, such as my_loop.py:my_train."),
        ("my_loop.py:", "Name the function too, such as my_loop.py:my_train."),
        ("my_loop:my_train", "Did you mean my_loop.py:my_train?"),
        ("my_train", "Such as my_loop.py:my_train."),
        (":my_train", "Such as my_loop.py:my_train."),
        ("", "Such as my_loop.py:my_train."),
    ],
)
def test_what_names_no_file_and_function_is_refused(folder: Path, name: str, hint: str) -> None:
    problem = problem_of(name)
    assert (problem.file, problem.given, problem.hint) == ("--train", repr(name), hint)
    assert "FILE.py:FUNCTION" in problem.must


def test_missing_file_is_refused_with_what_is_there(folder: Path) -> None:
    problem = problem_of("my_lop.py:my_train")
    assert problem.given == "my_lop.py, which is not there"
    assert problem.hint == f"In {folder} are my_loop.py."
    (folder / "folder.py").mkdir()
    assert problem_of("folder.py:my_train").must == "must be a readable Python file"


@pytest.mark.parametrize(
    ("function", "hint"),
    [("my_tain", "Did you mean `my_train`?"), ("zzz", "There are helper, my_train.")],
)
def test_function_that_is_not_there_is_refused(folder: Path, function: str, hint: str) -> None:
    problem = problem_of(f"my_loop.py:{function}")
    assert (problem.file, problem.given) == (f"{folder}/my_loop.py", f"`{function}`")
    assert problem.hint == hint


def test_what_is_no_function_is_refused_with_its_line(folder: Path) -> None:
    problem = problem_of("my_loop.py:NUMBER")
    assert (problem.file, problem.line) == (f"{folder}/my_loop.py", 3)
    assert problem.must.startswith("`NUMBER` must be a function of (params, run)")
    assert problem.given == "3"


@pytest.mark.parametrize(
    ("text", "line", "given"),
    [
        ("X = 1\ndef my_train(params, run)\n    pass\n", 2, "SyntaxError: expected ':'"),
        ("X = 1\n\nY = X / 0\n", 3, "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(4)\n", 2, "SystemExit: 4"),
        ("import no_such_library\n", 1, "ModuleNotFoundError: No module named"),
    ],
)
def test_file_that_does_not_run_is_refused_with_its_line(
    folder: Path, text: str, line: int, given: str
) -> None:
    (folder / "broken.py").write_text(text)
    problem = problem_of("broken.py:my_train")
    assert (problem.file, problem.line) == (f"{folder}/broken.py", line)
    assert problem.given is not None and problem.given.startswith(given)


def test_file_that_imports_its_neighbour_is_refused_as_workers_have_none(folder: Path) -> None:
    (folder / "two.py").write_text("from my_loop import my_train\n")
    assert "travels alone to the workers" in str(problem_of("two.py:my_train"))


def test_further_commands_get_the_option_as_a_shell_takes_it() -> None:
    assert again_with("my loops/a.py:f") == " --train 'my loops/a.py:f'"


def test_study_of_a_function_without_it_says_only_that_it_is_missing() -> None:
    for read in (study_of, recipe_of):
        with pytest.raises(ConfigError) as caught:
            read(scan_yaml(OWN, file="hill.yaml"))
        (problem,) = caught.value.problems
        assert (problem.path, problem.line) == ("workload.dataset", 2)
        assert "--train FILE.py:FUNCTION" in str(problem)


def test_study_of_recipes_that_lacks_its_data_hears_of_all_its_mistakes() -> None:
    text = "workload: {target: {value: 0.9}}\nrecipe: {model: resnet20, epochs: 0}\n"
    with pytest.raises(ConfigError) as caught:
        study_of(scan_yaml(text, file="lacking.yaml"))
    paths = [problem.path for problem in caught.value.problems]
    assert {"workload.dataset", "recipe.optimizer", "recipe.epochs"} <= set(paths)


@pytest.mark.parametrize("workload", ["digits", "{dataset: digits, target: {value: 0.9}}"])
def test_study_of_recipes_is_no_function_s(folder: Path, workload: str) -> None:
    (folder / "s.yaml").write_text(f"workload: {workload}\nrecipe: {{model: resnet20}}\n")
    train = function_of("my_loop.py:my_train")
    with pytest.raises(ConfigError) as caught:
        own_study_from("s.yaml", train, target=None, workload=None, overrides=[])
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.path) == ("s.yaml", 1, "workload")
    assert "leave out the training function" in str(problem)


def test_no_study_file_can_name_a_function(folder: Path) -> None:
    (folder / "ran.py").write_text("open('ran', 'w').close()\ndef f(params, run): pass\n")
    for text in (f"{OWN}train: ran.py:f\n", OWN.replace("depth: 3", "train: ran.py:f")):
        with pytest.raises(ConfigError):
            study_of(scan_yaml(text, file="hill.yaml"))
    assert not (folder / "ran").exists()
