"""Every command of docker/README.md names files, services and options that exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_file import COMPOSE, DOCKER, ROOT, read_compose
from helpers.documents import PROGRAMS, unknown_options

README = (DOCKER / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.strip().splitlines()]
VERBS = {"build", "up", "exec", "run", "cp", "ps", "logs", "down"}
MANIFEST: list[dict[str, Any]] = [*yaml.safe_load_all((DOCKER / "kuberay.yaml").read_text())]
SERVICES = read_compose(COMPOSE)["services"]


def split(command: str) -> list[str]:
    """Returns the words of a command, without what stands before it and where its output goes."""
    words = shlex.split(command.split(" > ")[0])
    return words[next(i for i, word in enumerate(words) if "=" not in word) :]


def composed(command: str) -> tuple[list[str], str, list[str]]:
    words = split(command)[2:]
    files = []
    while words[0] == "-f":
        files.append(words[1])
        words = words[2:]
    return files, words[0], words[1:]


def given(program: str) -> list[str]:
    return [command for command in COMMANDS if split(command)[: program.count(" ") + 1] == (
        program.split())]  # fmt: skip


def test_both_ways_are_there() -> None:
    assert len(given("docker compose")) > 10 and len(given("kubectl")) > 5
    kinds = {split(command)[0] for command in COMMANDS}
    assert kinds <= {"sh", "docker", "kubectl", "kind"}


@pytest.mark.parametrize("command", given("docker compose"))
def test_compose_command_names_what_exists(command: str) -> None:
    files, verb, rest = composed(command)
    assert files and all((ROOT / file).exists() for file in files)
    assert verb in VERBS
    if verb in ("exec", "run"):
        service, program, *_ = [word for word in rest if word != "--rm"]
        assert service in SERVICES
        if program in PROGRAMS:
            inner = rest[rest.index(program) :]
            assert unknown_options(inner) == []
    if verb == "logs":
        assert set(rest) <= set(SERVICES)


@pytest.mark.parametrize("command", [c for c in COMMANDS if "tune-speed search" in c])
def test_search_names_a_study_and_joins_the_cluster(command: str) -> None:
    words = shlex.split(command)
    place = words.index("tune-speed")
    inner = words[place:]
    assert unknown_options(inner) == []
    assert inner[inner.index("--address") + 1] == "auto"
    name = Path(inner[2]).name.removesuffix(".yaml")
    assert (ROOT / "search_spaces" / f"{name}.yaml").exists()


@pytest.mark.parametrize("command", [c for c in COMMANDS if "=" in shlex.split(c)[0]])
def test_variables_before_a_command_are_those_of_the_files(command: str) -> None:
    words = shlex.split(command)
    names = [word.split("=")[0] for word in words if re.match(r"[A-Z_]+=", word)]
    assert names and all(f"${{{name}:-" in COMPOSE.read_text() for name in names)


@pytest.mark.parametrize("command", given("docker build"))
def test_build_command_builds_what_the_files_use(command: str) -> None:
    words = split(command)
    assert (ROOT / words[words.index("-f") + 1]).exists() and words[-1] == "."
    tag = words[words.index("-t") + 1]
    assert f"image: {tag}" in (DOCKER / "kuberay.yaml").read_text()
    if "--build-arg" in words:
        name, value = words[words.index("--build-arg") + 1].split("=")
        dockerfile = (DOCKER / "Dockerfile").read_text()
        assert f"ARG {name}=" in dockerfile and f"AS dependencies-{value}\n" in dockerfile


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("kubectl")])
def test_kubectl_command_names_what_exists(command: str) -> None:
    words = shlex.split(command)
    files = [words[i + 1] for i, word in enumerate(words) if word == "-f" and "apply" in words]
    files += [word.split("=")[1] for word in words if word.startswith("--from-file=")]
    made = {"docker/secrets/postgres_password", "docker/secrets/mlflow_database"}
    assert all(file in made or (ROOT / file).exists() for file in files)
    for kind, name in (word.split("/") for word in words if re.fullmatch(r"[a-z]+/[a-z-]+", word)):
        if kind == "svc":  # KubeRay makes it.
            assert name == "tune-speed-head-svc"
            continue
        there = {(one["kind"].lower(), one["metadata"]["name"]) for one in MANIFEST}
        assert (kind, name) in there


def test_secret_of_the_manifest_is_the_one_that_is_made() -> None:
    [make] = [c for c in COMMANDS if "create secret" in c]
    name = shlex.split(make)[shlex.split(make).index("generic") + 1]
    keys = {Path(word.split("=")[1]).name for word in shlex.split(make) if "from-file" in word}
    items = re.findall(r"secretName: (\w+)\n\s+items: \[\{key: (\w+), path: (\w+)\}\]",
                       (DOCKER / "kuberay.yaml").read_text())  # fmt: skip
    assert {(name, key, key) for key in keys} == set(items)


def test_every_file_beside_it_is_in_its_table() -> None:
    files = {file.name for file in DOCKER.iterdir() if file.is_file() and file.name[0] != "."}
    own = {"README.md", "Dockerfile.dockerignore"}
    assert [name for name in files - own if f"`{name}`" not in README] == []
