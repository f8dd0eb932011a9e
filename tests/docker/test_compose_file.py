"""What must hold of the compose files, as they are and with GPUs."""

import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from compose_file import COMPOSE, CUDA, DOCKER, read_compose
from helpers.documents import unknown_options

TOGETHER = {"cpu": read_compose(COMPOSE), "cuda": read_compose(COMPOSE, CUDA)}
SERVICES = [(which, name) for which, compose in TOGETHER.items() for name in compose["services"]]


@pytest.fixture(params=SERVICES, ids=lambda pair: "-".join(pair))
def service(request: pytest.FixtureRequest) -> dict[str, Any]:
    which, name = request.param
    found: dict[str, Any] = TOGETHER[which]["services"][name]
    return found


def test_the_issues_services_are_there() -> None:
    assert set(TOGETHER["cpu"]["services"]) == {"postgres", "mlflow", "head", "worker"}


def test_service_has_a_check_and_bounds(service: dict[str, Any]) -> None:
    check = service["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)
    assert service["deploy"]["resources"]["limits"]["memory"]
    assert service["restart"] == "unless-stopped"


def test_service_may_do_little(service: dict[str, Any]) -> None:
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "network_mode", "pid", "ipc"} & set(service)
    assert "docker.sock" not in str(service["volumes"])


def test_published_ports_are_for_this_machine_only(service: dict[str, Any]) -> None:
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_images_are_named_with_a_tag_and_ours_are_never_pulled(service: dict[str, Any]) -> None:
    name, _, tag = service["image"].partition(":")
    assert tag and tag != "latest"
    if name == "tune-speed":
        assert "build" in service or service["pull_policy"] == "never"


def test_secrets_are_files_and_nothing_else(service: dict[str, Any]) -> None:
    for name, value in service["environment"].items():
        secret = any(word in name for word in ("PASSWORD", "TOKEN", "PGSERVICEFILE"))
        assert not secret or str(value).startswith("/run/secrets/"), name
    assert "password" not in " ".join(service.get("command", ())).lower()


def test_names_that_services_use_are_defined() -> None:
    for compose in TOGETHER.values():
        for service in compose["services"].values():
            named = {volume.split(":")[0] for volume in service["volumes"] if volume[0] != "."}
            assert named <= set(compose["volumes"])
            assert set(service.get("secrets", ())) <= set(compose["secrets"])
            assert set(service.get("networks", ())) <= set(compose["networks"])
            assert set(service.get("depends_on", ())) <= set(compose["services"])
            waits = service.get("depends_on", {}).values()
            assert all(wait == {"condition": "service_healthy"} for wait in waits)


def test_token_authentication_is_on_wherever_ray_runs() -> None:
    for name in ("head", "worker"):
        environment = TOGETHER["cpu"]["services"][name]["environment"]
        assert environment["RAY_AUTH_MODE"] == "token"
        assert environment["RAY_AUTH_TOKEN_PATH"] == "/run/secrets/ray_token"


def test_options_of_the_commands_exist(service: dict[str, Any]) -> None:
    if service["image"].startswith("tune-speed"):
        assert unknown_options(service["command"]) == []


def test_an_option_that_does_not_exist_is_found() -> None:
    assert unknown_options(["ray", "start", "--head", "--no-such=1"]) == ["--no-such"]
    assert unknown_options(["ray", "job", "submit", "--no-wait", "--", "x", "--y"]) == []


def test_with_gpus_one_worker_has_them_all() -> None:
    services = TOGETHER["cuda"]["services"]
    deploy = services["worker"]["deploy"]
    [device] = deploy["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert deploy["replicas"] == 1 and deploy["resources"]["limits"]
    assert {services[name]["image"] for name in ("head", "worker")} == {"tune-speed:cuda"}
    assert services["head"]["build"]["args"]["DEVICE"] == "cuda"


def test_secrets_are_made_once_readable_in_containers_and_for_nobody_else(tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    script.write_text((DOCKER / "secrets.sh").read_text())
    made = [_make(script), _make(script)]
    assert made[0] == made[1]
    folder = tmp_path / "secrets"
    wanted = {Path(secret["file"]).name for secret in TOGETHER["cpu"]["secrets"].values()}
    assert set(made[0]) == wanted
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o644}
    assert len({made[0]["ray_token"], made[0]["postgres_password"]}) == 2
    assert len(made[0]["ray_token"]) == 64
    assert f"password={made[0]['postgres_password']}\n" in made[0]["mlflow_database"]


def _make(script: Path) -> dict[str, str]:
    subprocess.run(["sh", str(script)], check=True, capture_output=True, timeout=30)
    return {file.name: file.read_text() for file in (script.parent / "secrets").iterdir()}


def test_secrets_are_not_for_git() -> None:
    ignored = subprocess.run(
        ["git", "check-ignore", "-q", "docker/secrets/ray_token"],
        cwd=DOCKER.parent,
        check=False,
        timeout=30,
    )
    assert ignored.returncode == 0
