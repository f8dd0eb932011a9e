"""Every command and block of the READMEs, in order, in one folder, as a reader would run them.

Commands of docker/README.md for other programs are in tests/docker/test_docker_readme.py.
"""

import re
import runpy
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
from helpers.command import Done, environment, here, run, run_inside
from helpers.data.files import write_photos
from helpers.documents import PROGRAMS, unknown_options

from tune_speed.components.plugins import registry
from tune_speed.study.file import load_recipe, load_study
from tune_speed.study.schema import StudySchema
from tune_speed.study.settings import SearchConfig
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Workload

ROOT = Path(__file__).parents[1]
FIRST = ROOT / "README.md"
OTHERS = [
    file for folder in ("search_spaces", "tune_speed", "docker", "tests")
    for file in sorted((ROOT / folder).rglob("README.md"))
]  # fmt: skip
TEXTS = {str(file.relative_to(ROOT)): file.read_text() for file in (FIRST, *OTHERS)}
BENCHMARKS = "tests/benchmarks/README.md"
"""Its commands take minutes to hours: they are held against the programs' options, and not run."""


def blocks(kind: str, name: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", TEXTS[name], re.DOTALL)


def commands(name: str) -> list[str]:
    lines = [line for block in blocks("sh", name) for line in block.strip().splitlines()]
    return [line for line in lines if line.startswith(("tune-speed ", "python"))]


PYTHON_BLOCKS = [block for name in TEXTS for block in blocks("python", name)]
FILES = {match[1]: block for block in PYTHON_BLOCKS if (match := re.match(r"# (\w+\.py)\n", block))}
"""Python blocks whose first line is the name of a file, which other blocks and commands use."""
YAML_BLOCKS = [block for name in TEXTS for block in blocks("yaml", name)]
COMMANDS = list(dict.fromkeys(c for name in TEXTS if name != BENCHMARKS for c in commands(name)))
INSTALLS = [command for command in COMMANDS if command.startswith("python3 -m venv")]
NEED_A_GPU = [command for command in COMMANDS if "--download" in command]
NAMED = [
    command for text in TEXTS.values()
    for command in re.findall(r"`(python tests/benchmarks/[^`]+)`", " ".join(text.split()))
]  # fmt: skip
NOT_RUN = list(dict.fromkeys([*commands(BENCHMARKS), *NAMED]))

FIRST_TRIALS = 3
EASY = "--set workload.target.value=0.15 --set recipe.epochs.high=5 --set search.concurrent=1"
SMALLER = {
    "search search_spaces/digits_quickstart.yaml": f"--trials {FIRST_TRIALS} {EASY}",
    "init photos": "--probe 1s --target 0.5",
    "search photos.yaml": "--trials 1 --set search.concurrent=1 --set workload.target.value=0.65"
    " --set search.points_to_evaluate=[] --set recipe.epochs=2 --set workload.max_train_s=60",
    "search digits_quickstart --resume": f"--trials {FIRST_TRIALS} {EASY}",
    "search digits_quickstart --set study=on_a_cluster": f"--trials 1 {EASY}",
    "search techniques": f"--trials 1 {EASY}",
    "certify": "--top 1 --seeds 1 --final 0",
    "train best.yaml --against": "--seeds 1",
    "ablate best.yaml": "--seeds 1 --set epochs=0.5 --set label_smoothing=0.1",
    "profile": "--steps 4",
}
"""What is appended to a command that trains for minutes: fewer and shorter runs of the same."""

FEWER = {
    'study="from_python", trials=4': f"""trials={FIRST_TRIALS}, resume=True, set={{
        "workload.target.value": 0.15, "recipe.epochs.high": 5, "search.concurrent": 1
    }}""",
    "trials=4": """trials=1, set={"search.concurrent": 1}""",
}
"""What stands in Python blocks for the former: no trial that the first command has not run, and one
of a training function."""

MAY_MISS = ("certify ", "train best.yaml", "search photos.yaml")
"""Commands that train again, with few seeds here: whether one meets the target is chance, and they
say by their exit code, 1, that none did."""

REQUIRED = {
    "model": "resnet20",
    "optimizer": "{sgd: {lr: {low: 0.1, high: 0.2}}}",
    "epochs": "2",
    "batch_size": "64",
}
"""Fields of a recipe that a YAML block about others leaves out."""

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    (folder / "search_spaces").symlink_to(ROOT / "search_spaces")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    write_photos(folder / "photos" / "train", size=110)
    write_photos(folder / "photos" / "test", size=110, count=16)
    torch.save(timm.create_model("regnety_002").state_dict(), folder / "lite0.pt")
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A Ray cluster of one node, as `ray start --head` makes it; returns its address."""
    ray, port = str(Path(sys.executable).parent / "ray"), str(free_port())
    options = ["--port", port, "--num-cpus", "2", "--include-dashboard", "false"]
    client = ["--ray-client-server-port", str(free_port())]
    begin = [ray, "start", "--head", *options, *client, "--disable-usage-stats", "--block"]
    # With --block it ends its own processes and no others, as `ray stop` would.
    head = subprocess.Popen(begin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert head.stdout is not None
    said = ""
    while "--block" not in said:
        line = head.stdout.readline()
        assert line, said
        said += line
    yield f"127.0.0.1:{port}"
    head.terminate()
    head.communicate(timeout=60)


def run_python(command: str, folder: Path) -> Done:
    """Runs a command of Python's in a process of its own."""
    program, *rest = shlex.split(command)
    assert program == "python"
    done = subprocess.run(
        [sys.executable, *rest],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def smaller(command: str) -> str:
    words = command.removeprefix("tune-speed ")
    return " ".join(
        [command, *(more for begin, more in SMALLER.items() if words.startswith(begin))]
    )


def test_the_two_commands_install_with_the_pins() -> None:
    assert len(INSTALLS) == 2
    assert all("-c docker/constraints.txt" in command for command in INSTALLS)
    ci = (ROOT / ".ci" / "run").read_text()
    assert "-m venv" in ci
    assert "install" in ci and "-e '.[test]' -c docker/constraints.txt" in ci
    assert "-m pytest" in ci


def test_first_command_ends_with_a_leaderboard(folder: Path) -> None:
    """As a newcomer runs it, with fewer trials: in a process of its own."""
    done = run(*shlex.split(smaller(INSTALLS[0].split(".venv/bin/")[-1]))[1:], folder=folder)
    assert done.code == 0, done.err
    # It ends sooner where the fastest trial was so lucky that nothing left could be as fast.
    ended = rf"(^{FIRST_TRIALS} trials: |no untried configuration can beat the leader)"
    assert re.search(ended, done.out + done.err, re.MULTILINE), done.out + done.err
    assert "digits_quickstart/t00" in done.out


@pytest.mark.parametrize(
    "command",
    [c for c in COMMANDS if c not in INSTALLS and c not in NEED_A_GPU and "--address" not in c],
)
def test_command_does_what_it_says(command: str, folder: Path) -> None:
    """In this process, where all is imported, as far as it is this package's."""
    program, *words = shlex.split(smaller(command))
    if program == "tune-speed":
        done = run_inside(*words, folder=folder)
        registry.unload()
    else:
        done = run_python(command, folder)
    may_miss = " ".join(words).startswith(MAY_MISS)
    assert done.code in ((0, 1) if may_miss else (0,)), done.err
    assert done.out or "wrote" in done.err


@pytest.mark.parametrize("code", [block for block in PYTHON_BLOCKS if "print(" in block])
def test_python_of_the_readmes_runs(folder: Path, code: str) -> None:
    for whole, part in FEWER.items():
        code = code.replace(whole, part)
    (folder / "block.py").write_text(code)
    with here(folder) as (out, _):
        runpy.run_path(str(folder / "block.py"), run_name="__main__")
    assert "accuracy" in out.getvalue()


@pytest.mark.parametrize("file", [file for file in FILES if not file.startswith("test_")])
def test_file_of_the_readmes_can_be_imported(folder: Path, file: str) -> None:
    done = run_python(f"python -W error {file}", folder)
    assert done.code == 0, done.err


def test_every_python_block_is_run_or_imported() -> None:
    assert [b for b in PYTHON_BLOCKS if "print(" not in b and b not in FILES.values()] == []


@pytest.mark.parametrize("command", NEED_A_GPU)
def test_gpu_search_without_gpu_and_data_is_refused_in_words(command: str, folder: Path) -> None:
    done = run_inside(*shlex.split(command)[1:], folder=folder, CUDA_VISIBLE_DEVICES="")
    assert done.code in (3, 4), done.err
    assert "Traceback" not in done.err


def test_search_on_a_cluster(folder: Path, cluster: str) -> None:
    [command] = [c for c in COMMANDS if "--address" in c]
    words = shlex.split(smaller(command).replace("127.0.0.1:6379", cluster))
    done = run_inside(*words[1:], folder=folder)
    assert done.code in (0, 1), done.err
    assert re.search(r"\b1 trials?\b", done.out), done.out


@pytest.mark.parametrize("command", NOT_RUN)
def test_command_that_takes_long_is_valid(command: str) -> None:
    words = shlex.split(command)
    assert words[1] in PROGRAMS[words[0]]
    assert unknown_options(words) == []


@pytest.mark.parametrize("block", YAML_BLOCKS)
def test_yaml_of_the_readmes_is_valid(block: str, tmp_path: Path) -> None:
    """A block without a workload gets one, and the fields that a recipe must have."""
    text = block if "workload:" in block else f"workload: digits\n{block}"
    given = text.partition("\nrecipe:")[2]
    text += "".join(f"  {k}: {v}\n" for k, v in REQUIRED.items() if f"\n  {k}:" not in given)
    file = tmp_path / "of_the_readme.yaml"
    file.write_text(text)
    if "\nablate:" in text:
        assert load_recipe(file, check_data=False).ablate
    else:
        assert load_study(file, check_data=False).space.parameters


def test_every_field_of_the_study_file_is_explained() -> None:
    configs = (StudySchema, Workload, Recipe, SearchConfig)
    names = {name for config in configs for name in config.model_fields}
    assert sorted(n for n in names if f"`{n}`" not in TEXTS["search_spaces/README.md"]) == []


def test_every_shipped_file_and_benchmark_is_mentioned() -> None:
    shipped = [path.stem for path in (ROOT / "search_spaces").glob("*.yaml")]
    benchmarks = [path.name for path in (ROOT / "tests" / "benchmarks").glob("bench_*.py")]
    assert [name for name in shipped if f"`{name}`" not in TEXTS["search_spaces/README.md"]] == []
    assert [name for name in benchmarks if f"`{name}`" not in TEXTS[BENCHMARKS]] == []


def test_first_readme_has_few_lines() -> None:
    assert len(TEXTS["README.md"].splitlines()) <= 250


@pytest.mark.parametrize("name", TEXTS)
def test_links_and_named_files_exist(name: str) -> None:
    missing = []
    for link in re.findall(r"\]\(([^)]+)\)", TEXTS[name]):
        path, _, heading = link.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        if "://" not in link and not (file.exists() and (not heading or heading in anchors(file))):
            missing.append(link)
    named = re.findall(r"`((?:tests|tune_speed|search_spaces)/[\w/.-]+)`", TEXTS[name])
    assert missing + [path for path in named if not (ROOT / path).exists()] == []


def anchors(file: Path) -> set[str]:
    """Returns what GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
