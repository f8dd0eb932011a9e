"""Databases with MLflow's tables on a real PostgreSQL server, copies of one."""

import sqlalchemy
from servers import Postgresql

from tune_speed.tracking import open_store


class Postgres:
    """A server's databases."""

    def __init__(self, server: Postgresql) -> None:
        self._server, self._number = server, 0
        self.run("postgres", "CREATE DATABASE empty")
        open_store(self.uri("empty"))

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
