"""Every command of the README, in its order, in one folder, as a reader would run them."""

import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import TUNE_SPEED, Done, environment

from tune_speed.study.file import load_study

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
YAML_BLOCKS = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.strip().splitlines()]
INSTALLS = [command for command in COMMANDS if command.startswith("python3 -m venv")]
NEED_A_GPU = [command for command in COMMANDS if "--download" in command]

SMALLER = {
    "search techniques": "--trials 5 --set workload.target.value=0.3 --set recipe.epochs=2",
    "certify": "--top 2 --seeds 2 --final 1 --final-seeds 2",
    "train best.yaml --against": "--seeds 2",
    "ablate best.yaml": "--seeds 1 --set epochs=0.5",
}
"""What is appended to a command that trains for minutes: fewer and shorter runs of the same."""

MAY_MISS = ("certify ", "train best.yaml")
"""Commands that train anew, with few seeds here: whether one meets the target is chance, and they
say by their exit code, 1, that none did."""

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


def run(command: str, folder: Path, **variables: str) -> Done:
    assert command.startswith("tune-speed ")
    done = subprocess.run(
        [TUNE_SPEED, *shlex.split(command)[1:]],
        cwd=folder,
        env={**environment(folder), **variables},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def test_the_two_commands_install_with_the_pins() -> None:
    assert len(INSTALLS) == 2
    assert all("-c docker/constraints.txt" in command for command in INSTALLS)
    ci = (ROOT / ".ci" / "run").read_text()
    assert "-m venv" in ci
    assert "install" in ci and "-e '.[test]' -c docker/constraints.txt" in ci
    assert "-m pytest" in ci


def test_first_command_ends_with_a_leaderboard(folder: Path) -> None:
    command = INSTALLS[0].split(".venv/bin/")[-1]
    done = run(command, folder)
    assert done.code == 0, done.err
    assert "30 trials: " in done.out
    assert "digits_quickstart/t00" in done.out


@pytest.mark.parametrize(
    "command",
    [c for c in COMMANDS if c not in INSTALLS and c not in NEED_A_GPU and "--address" not in c],
)
def test_command_does_what_it_says(command: str, folder: Path) -> None:
    smaller = [more for begin, more in SMALLER.items() if command.startswith(f"tune-speed {begin}")]
    done = run(" ".join([command, *smaller]), folder)
    may_miss = command.startswith(tuple(f"tune-speed {begin}" for begin in MAY_MISS))
    assert done.code in ((0, 1) if may_miss else (0,)), done.err
    assert done.out or "wrote" in done.err


@pytest.mark.parametrize("code", [block for block in PYTHON_BLOCKS if "print(" in block])
def test_python_of_the_readme_runs(folder: Path, code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


@pytest.mark.parametrize("command", NEED_A_GPU)
def test_gpu_search_without_gpu_and_data_is_refused_in_words(command: str, folder: Path) -> None:
    done = run(command, folder, CUDA_VISIBLE_DEVICES="")
    assert done.code in (3, 4), done.err
    assert "Traceback" not in done.err


def test_search_on_a_cluster(folder: Path, cluster: str) -> None:
    command = next(c for c in COMMANDS if "--address" in c)
    done = run(command.replace("127.0.0.1:6379", cluster), folder)
    assert done.code in (0, 1), done.err
    assert "4 trials: " in done.out


def test_study_file_of_the_readme_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "my_search.yaml"
    file.write_text(YAML_BLOCKS[0])
    assert load_study(file, check_data=False).space.parameters


def test_techniques_of_the_readme_are_valid_in_a_study(tmp_path: Path) -> None:
    [_, techniques] = YAML_BLOCKS
    rest = ["model: resnet20", "optimizer: {sgd: {lr: 0.1}}", "epochs: 2", "batch_size: 64"]
    file = tmp_path / "techniques_of_the_readme.yaml"
    file.write_text("workload: digits\n" + techniques + "".join(f"  {line}\n" for line in rest))
    names = {parameter.name for parameter in load_study(file, check_data=False).space.parameters}
    assert {"order", "speedups.init", "speedups.depth", "speedups.resolution"} <= names


def test_every_shipped_file_and_benchmark_is_mentioned() -> None:
    shipped = [path.stem for path in (ROOT / "search_spaces").glob("*.yaml")]
    benchmarks = [path.name for path in (ROOT / "tests" / "benchmarks").glob("bench_*.py")]
    assert [name for name in [*shipped, *benchmarks] if name not in README] == []
