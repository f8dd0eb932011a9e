"""YAML that is made to hurt: refused with file and line, within bounds of memory and CPU time."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.study.file import load_study
from tune_speed.study.yaml import MAX_BYTES, MAX_PROBLEMS, scan_file, scan_yaml

M = MAX_BYTES - 100
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(10)
)
BOMBS = {
    "aliases of aliases": LAUGHS,
    "lists in lists": "[" * M,
    "mappings in mappings": "{a: " * (M // 4),
    "blocks in blocks": "- " * (M // 2),
    "question marks": "? " * (M // 2),
    "many values": "- a\n" * (M // 4),
    "many tags": "[" + "!a x," * (M // 5) + "]",
    "mistakes below a long key": "? " + "k" * (M // 2) + "\n: [" + "!a x," * (M // 10 - 9) + "]",
    "keys below a long key": '? "' + "k" * (M // 4) + '"\n: {' + "a: 1, " * (M // 8) + "}",
    "a file too long": "#" * (MAX_BYTES + 1),
}
READ = """
import json, resource, sys
from tune_speed.core.errors import ConfigError
from tune_speed.study.yaml import scan_file
found = {}
for path in sys.argv[1:]:
    try:
        found[path] = [str(problem) for problem in scan_file(path).problems]
    except ConfigError as error:
        found[path] = [str(error)]
print(json.dumps(found))
"""
MEMORY_BYTES, CPU_S = 1 << 30, 300
"""Address space and processor time of all bombs together: without bounds they take either whole."""


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))


@pytest.mark.slow
def test_bombs_are_refused_within_bounds_of_memory_and_time(tmp_path: Path) -> None:
    files = {}
    for number, (name, text) in enumerate(BOMBS.items()):
        files[name] = tmp_path / f"{number}.yaml"
        files[name].write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", READ, *map(str, files.values())],
        preexec_fn=_limit,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    for name, path in files.items():
        problems = found[str(path)]
        assert 0 < len(problems) <= MAX_PROBLEMS + 1, name
        assert all(problem.startswith(str(path)) and len(problem) < 2000 for problem in problems)


def test_a_device_that_never_ends_is_read_no_further_than_the_limit() -> None:
    with pytest.raises(ConfigError, match="at most 1024 KiB"):
        scan_file("/dev/zero")


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000, "a\0b", "", "."])
def test_what_no_file_can_be_called_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="must be a file"):
        load_study(name)


def study(**changes: str) -> str:
    fields = {"lr": "0.1", "batch_size": "25", "epochs": "1", "search": "{}", **changes}
    return f"""
workload: digits
recipe:
  model: resnet20
  optimizer: {{sgd: {{lr: {fields["lr"]}}}}}
  epochs: {fields["epochs"]}
  batch_size: {fields["batch_size"]}
search: {fields["search"]}
"""


@pytest.mark.parametrize(
    ("changes", "must"),
    [
        (
            {"batch_size": f"{{choices: [{', '.join(map(str, range(1, 5000)))}]}}"},
            "choices must be at most 1000",
        ),
        ({"lr": "{low: 1e-300, high: 1.0e+300, step: 1e-300}"}, "must have at most 1000000 steps"),
        ({"lr": "{low: 0.1, high: 1, step: 1e-9}"}, "must have at most 1000000 steps"),
        (
            {
                "lr": "{choices: [0.1, 0.2]}",
                "epochs": "{low: 1, high: 3, step: 9223372036854775807}",
            },
            "must be `low` plus whole steps",
        ),
        (
            {"search": "{sampler: grid}", "batch_size": "{choices: [25, 50]}"}
            | {"epochs": "{low: 1, high: 90000, step: 0.01}"},
            "must have at most 1000000 steps",
        ),
        ({"search": f'{{time_budget: "{"1" * 5000}s"}}'}, "must be a duration above 0"),
    ],
)
def test_a_search_space_cannot_ask_for_more_than_fits(
    tmp_path: Path, changes: dict[str, str], must: str
) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(study(**changes))
    with pytest.raises(ConfigError) as caught:
        load_study(path)
    assert must in str(caught.value)
    assert len(str(caught.value)) < 60_000


def test_many_mistakes_are_counted_and_not_all_told(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(study() + "".join(f"field{i}: 1\n" for i in range(900)))
    with pytest.raises(ConfigError) as caught:
        load_study(path)
    first, *told = str(caught.value).splitlines()
    assert len(told) == MAX_PROBLEMS
    assert first == f"The first {MAX_PROBLEMS} mistakes; {900 - MAX_PROBLEMS} more follow them:"


@pytest.mark.parametrize("key", ['"\\e]0;x\\a"', '"\\u202Eabc"', '"a\\nerror: b"', '"\\x9b31m"'])
def test_messages_hold_no_character_that_a_terminal_obeys(tmp_path: Path, key: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(study() + f"{key}: {{{key}: !{key[1:-1]} 1}}\n")
    with pytest.raises(ConfigError) as caught:
        load_study(path)
    assert len(caught.value.problems) >= 1
    assert all(line.isprintable() for line in str(caught.value).splitlines())
    assert all(line.startswith(str(path)) for line in str(caught.value).splitlines())


def test_aliases_multiply_no_mistake() -> None:
    source = scan_yaml("a: &a [!x 1]\nb: [" + "*a, " * 1000 + "]\n", file="x")
    assert len(source.problems) == 1
