"""A real PostgreSQL server on loopback, as a user without rights, its files in a folder of /tmp."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import sqlalchemy

from tune_speed.tracking import open_store

START_S = 60.0


def why_not() -> str | None:
    """Returns what a server lacks here; None: nothing."""
    if find_spec("psycopg2") is None:
        return "needs psycopg2-binary"
    missing = [name for name in ("initdb", "postgres") if shutil.which(name) is None]
    return f"needs PostgreSQL: no {' and '.join(missing)} on PATH" if missing else None


class Postgres:
    """A server; `new_store` makes databases with MLflow's tables, copies of one."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tune_speed-postgres-"))
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root.
            nobody = pwd.getpwnam("nobody")
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
            self._as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        with closing(socket.socket()) as listener:
            listener.bind(("127.0.0.1", 0))
            self._port = listener.getsockname()[1]
        self._number = 0
        self._process = self._start()
        self.run("postgres", "CREATE DATABASE empty")
        open_store(self.uri("empty"))

    def uri(self, database: str, *, user: str = "tester") -> str:
        return f"postgresql+psycopg2://{user}:s3cret@127.0.0.1:{self._port}/{database}"

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

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)
        shutil.rmtree(self._folder)

    def _start(self) -> "subprocess.Popen[bytes]":
        data = str(self._folder / "data")
        for_all = {"cwd": self._folder, "stdout": subprocess.DEVNULL, **self._as_user}
        made = ["initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(made, check=True, **for_all)
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        command = ["postgres", "-D", data, "-p", str(self._port)]
        command += [part for each in settings.items() for part in ("-c", "=".join(each))]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, **for_all)
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.run("postgres", "SELECT 1")
                return process
            except sqlalchemy.exc.OperationalError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.1)
