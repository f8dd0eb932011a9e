"""What must hold of the images, read from the Dockerfile."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from compose_file import DOCKER, ROOT
from dockerfile import Instruction, context, exec_form, parse
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DOCKERFILE = (DOCKER / "Dockerfile").read_text()
IGNORE = (DOCKER / "Dockerfile.dockerignore").read_text()
DEVICES = ("cpu", "cuda")


def instructions(device: str) -> list[Instruction]:
    return parse(DOCKERFILE, arguments={"DEVICE": device}).image()[1]


def of(word: str, device: str = "cpu") -> list[str]:
    return [rest for each, rest in instructions(device) if each == word]


@pytest.mark.parametrize("device", DEVICES)
def test_base_is_pinned_by_name_and_tag(device: str) -> None:
    base, _ = parse(DOCKERFILE, arguments={"DEVICE": device}).image()
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", base)


def test_images_differ_in_their_dependencies_only() -> None:
    cpu, cuda = (parse(DOCKERFILE, arguments={"DEVICE": device}) for device in DEVICES)
    assert cpu.stages[None].parent == "dependencies-cpu"
    assert cuda.stages[None].parent == "dependencies-cuda"
    assert cpu.stages[None].instructions == cuda.stages[None].instructions


@pytest.mark.parametrize("device", DEVICES)
def test_user_is_a_number_and_not_root(device: str) -> None:
    assert of("USER", device) == ["10001:10001"]
    words = [word for word, _ in instructions(device)]
    assert "RUN" not in words[words.index("USER") :]
    [made] = [run for run in of("RUN", device) if "useradd" in run]
    assert "--uid 10001 --gid 10001" in made


@pytest.mark.parametrize("device", DEVICES)
def test_every_install_is_by_hash_and_keeps_no_cache(device: str) -> None:
    installs = [
        part
        for run in of("RUN", device)
        for part in re.split(r"&&|;|then", run)
        if "pip install" in part
    ]
    assert len(installs) >= 2
    for install in installs:
        assert "--no-cache-dir" in install
        by_hash = "--require-hashes --no-deps" in " ".join(install.split())
        # An index of CPU-only wheels is whoever builds' own.
        assert by_hash or "--no-index" in install or '--index-url "$TORCH_INDEX" torch' in install
    assert all("rm -rf /var/lib/apt/lists" in r for r in of("RUN", device) if "apt-get" in r)


def test_constraints_pin_all_that_the_images_install() -> None:
    assert wanted() <= constraints().keys()


def test_images_install_by_hash_what_the_constraints_pin() -> None:
    """Run `docker/lock.sh` after a change to pyproject.toml or to the constraints."""
    both = [(DOCKER / f"requirements{kind}.txt").read_text() for kind in ("", "-cuda")]
    locked: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", "\n".join(each.strip() for each in both)):
        found = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", block)
        assert found and re.search(r"--hash=sha256:[0-9a-f]{64}", block), block
        locked[canonicalize_name(found[1])] = found[2]
    assert "://" not in "".join(both)
    names, pinned = wanted(), constraints()
    assert {"ray", "torch", "mlflow", "psycopg2-binary"} <= names <= locked.keys()
    assert [name for name in locked.keys() & pinned if locked[name] != pinned[name]] == []
    # Others are for other systems.
    assert locked.keys() - pinned <= {"colorama", "httpx2-jsfetch", "pywin32", "tzdata", "waitress"}
    assert {"torch", "triton"} <= {line.split("=")[0] for line in both[1].splitlines()}


def constraints() -> dict[str, str]:
    lines = (DOCKER / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!]+", line) for line in lines)
    return {canonicalize_name(name): version for name, version in (x.split("==") for x in lines)}


def wanted() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["cluster"]]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def test_versions_of_ray_are_those_of_the_constraints() -> None:
    assert f"ray=={metadata.version('ray')}" in (DOCKER / "constraints.txt").read_text()
    manifest = (DOCKER / "kuberay.yaml").read_text()
    assert f'rayVersion: "{metadata.version("ray")}"' in manifest


def test_context_holds_the_program_and_nothing_of_a_user() -> None:
    files = [file.as_posix() for file in context(ROOT, IGNORE)]
    tops = {file.split("/")[0] for file in files}
    wanted = {"LICENSE", "README.md", "docker", "pyproject.toml", "search_spaces", "tune_speed"}
    assert tops == wanted
    assert {file for file in files if file.startswith("docker/")} == {
        "docker/constraints.txt",
        "docker/requirements.txt",
        "docker/requirements-cuda.txt",
    }
    assert (
        "tune_speed/cli/main.py" in files
        and "tune_speed/reporting/page/templates/study.html.j2" in files
    )
    assert not any(file.endswith(".pyc") for file in files)


def test_ignore_file_keeps_secrets_and_results_out(tmp_path: Path) -> None:
    for name in ("docker/secrets/ray_token", "mlflow.db", ".env", "tune_speed/x.py", "data/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [file.as_posix() for file in context(tmp_path, IGNORE)] == ["tune_speed/x.py"]


def test_every_copied_path_is_in_the_context() -> None:
    files = context(ROOT, IGNORE)
    for copied in of("COPY"):
        for source in copied.split()[:-1]:
            assert any(file.is_relative_to(source) for file in files), source


def test_image_starts_with_an_exec_form_that_passes_signals_on() -> None:
    assert exec_form(of("ENTRYPOINT")[0]) == ["tini", "--"]
    assert exec_form(of("CMD")[0]) == ["tune-speed", "--help"]
    [check] = of("HEALTHCHECK")
    assert exec_form(check[check.index("[") :])


def test_no_secret_is_in_a_layer() -> None:
    settings = [*of("ENV"), *of("ARG"), *of("ENV", "cuda"), *of("LABEL")]
    assert not re.search(r"(?i)token|password|secret", " ".join(settings))


def test_labels_say_what_the_image_is() -> None:
    labels = " ".join(of("LABEL"))
    for key in ("title", "description", "licenses", "version", "revision", "base.name"):
        assert f"org.opencontainers.image.{key}=" in labels
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"VERSION={project['version']}" in of("ARG")
    assert f'base.name="{parse(DOCKERFILE, arguments={}).image()[0]}"' in labels
