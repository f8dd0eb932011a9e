"""SQLite stores: made in one piece, checked before use, analysed after it.

By MLflow 3 alone, two processes that open a fresh file break each other's migrations, a kill leaves
half a schema, a damaged file is tried for 100 s, and the query planner never gets its statistics.
"""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib import metadata
from pathlib import Path

from tune_speed.core.errors import ServiceError, StorageError
from tune_speed.core.folders import default_cache_dir
from tune_speed.core.text import switch
from tune_speed.runtime.atomic_file import write_atomically
from tune_speed.runtime.file_lock import acquire

# Least free space to begin with: an empty store takes 1 MB, a trial about 30 kB.
MIN_FREE_BYTES = 32 << 20
# Stores up to this size are checked throughout (0.1 s); larger ones by their schema alone.
MAX_CHECKED_BYTES = 64 << 20
# Longest wait for a process that writes, as MLflow's own.
BUSY_S = 20.0
# Longest wait for it where only statistics are at stake.
ANALYZE_BUSY_S = 2.0
# Times as many rows as when the statistics were made: then they are made again.
GROWTH = 4
# Runs below which any plan is fast.
LEAST_ROWS = 1000
# Rows that ANALYZE looks at per index: enough for the planner, and fast at any size.
ANALYSIS_LIMIT = 1000


@contextmanager
def folder_lock(folder: Path, *, timeout_s: float) -> Iterator[None]:
    """Holds an exclusive lock on `folder`; the kernel frees it if the process dies.

    Raises: ServiceError after `timeout_s`; StorageError if the file system knows no locks.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            is_held = acquire(handle, wait_s=timeout_s)
        except OSError as error:
            raise StorageError(
                f"{folder} must be on a file system with locks, but got: {error}. SQLite is not"
                " safe there (NFS?): use a local folder or an MLflow server (MLFLOW_TRACKING_URI)."
            ) from error
        if not is_held:
            raise ServiceError(
                f"the results in {folder} must be free to open, but another process holds them"
                " locked. Wait for it, or end it."
            )
        yield
    finally:
        os.close(handle)


def create(path: Path) -> None:
    """Creates an empty MLflow store at `path`, whole or not at all. Needs the folder's lock."""
    new = path.with_name(f".{path.name}.new")
    try:
        for leftover in (*_files_of(new), *_files_of(path)):
            leftover.unlink(missing_ok=True)
        if not _copied(new):
            _migrate(new)
            # For the next store of this node; where that fails, there is none.
            with suppress(OSError):
                cached = _cached()
                cached.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                with write_atomically(cached) as file:
                    file.write(new.read_bytes())
        new.replace(path)
    finally:
        for leftover in _files_of(new):
            with suppress(OSError):  # It must not hide the first error.
                leftover.unlink(missing_ok=True)


def check(path: Path, *, writing: bool) -> None:
    """Raises: StorageError if the file is damaged, or cannot be written when it should be."""
    mode = "rw" if writing else "ro"
    try:
        address = f"{path.as_uri()}?mode={mode}"
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if writing:
                connection.execute("BEGIN IMMEDIATE")
                connection.rollback()
                if path.stat().st_size <= MAX_CHECKED_BYTES:
                    (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                    if result != "ok":
                        raise damaged(path, " ".join(result.split()))
    except sqlite3.OperationalError as error:
        raise storage_error(path, error) from error
    except sqlite3.DatabaseError as error:
        raise damaged(path, str(error)) from error


def check_space(folder: Path) -> None:
    """Raises: StorageError if `folder` has no room for a store."""
    total, _, free = shutil.disk_usage(folder)
    if total > 0 and free < MIN_FREE_BYTES:
        raise StorageError(
            f"{folder} must have {MIN_FREE_BYTES >> 20} MiB of free space for results, but got"
            f" {free / (1 << 20):.1f} MiB. Free some space, or keep results elsewhere with"
            " MLFLOW_TRACKING_URI=sqlite:////other/folder/mlflow.db."
        )


def analyze(path: Path) -> bool:
    """Gives the query planner its statistics; returns whether it could."""
    # Without them, MLflow's searches over 10,000 runs take seconds, with them milliseconds. A store
    # that is busy, read-only, full or damaged is left as it is, to those who read what it says.
    try:
        with closing(sqlite3.connect(path, timeout=ANALYZE_BUSY_S)) as connection:
            connection.execute(f"PRAGMA analysis_limit = {ANALYSIS_LIMIT}")
            connection.execute("ANALYZE")
            connection.commit()
    except sqlite3.DatabaseError:
        return False
    return True


def analyze_if_outdated(path: Path) -> bool:
    """Gives the planner statistics where it has none or much older ones; returns whether it did."""
    # A search does it at its end; one that was killed, or that still runs, leaves readers without.
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            # The table of statistics is there only after a first ANALYZE.
            table = "SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'"
            of_runs = "SELECT stat FROM sqlite_stat1 WHERE tbl = 'runs'"
            is_analyzed = connection.execute(table).fetchone() is not None
            rows = connection.execute(of_runs).fetchall() if is_analyzed else []
            known = max((int(stat.split()[0]) for (stat,) in rows if stat), default=0)
            (present,) = connection.execute("SELECT count(*) FROM runs").fetchone()
    except sqlite3.Error:
        return False
    return present >= LEAST_ROWS and present >= GROWTH * known and analyze(path)


def storage_error(path: Path, error: Exception) -> StorageError:
    text = str(error).lower()
    if "malformed" in text or "not a database" in text:
        return damaged(path, str(error))
    advice = "Check the folder's permissions, or choose another one"
    if "disk is full" in text or "no space left" in text:
        advice = "Free some space, or choose another folder"
    elif "another version" in text:
        advice = "Use that version, or `mlflow db upgrade` on a copy, or choose another file"
    elif "locked" in text:
        advice = "Another process keeps writing: wait for it or end it, or choose another file"
    return StorageError(
        f"the results in {path} must be readable and writable, but got: {error}. {advice} with"
        " MLFLOW_TRACKING_URI=sqlite:////other/folder/mlflow.db; finished trials stay in the"
        f" study's ledger, and {switch('resume')} delivers them."
    )


def replaced(path: Path) -> StorageError:
    return StorageError(
        f"{path} must stay where it is while a search writes to it, but it was removed, moved or"
        f" replaced. Finished trials are in the study's ledger: search {switch('resume')} delivers"
        " them to the store that is there then."
    )


def damaged(path: Path, found: str) -> StorageError:
    return StorageError(
        f"{path} must be a whole SQLite database, but got: {found}. Move it away, or restore a copy"
        f" (`sqlite3 {path} .recover` saves what it can); search {switch('resume')} fills a new"
        " one from the study's ledger."
    )


def _files_of(path: Path) -> list[Path]:
    # SQLite would replay a log that outlived its database into the next one of that name.
    return [path.with_name(path.name + suffix) for suffix in ("", "-journal", "-wal", "-shm")]


def _copied(path: Path) -> bool:
    # Some seventy migrations lead to an empty store: a second of processor time.
    cached = _cached()
    try:
        check(cached, writing=True)
    except StorageError:
        return False
    shutil.copyfile(cached, path)
    return True


def _cached() -> Path:
    version = metadata.version("mlflow")
    return default_cache_dir() / "mlflow" / f"empty-{version}-sqlite-{sqlite3.sqlite_version}.db"


def _migrate(path: Path) -> None:
    from mlflow.store.db import utils as mlflow_db

    engine = mlflow_db.create_sqlalchemy_engine(f"sqlite:///{path}")
    try:
        mlflow_db._initialize_tables(engine)
    finally:
        engine.dispose()
    with closing(sqlite3.connect(path)) as connection:
        # Readers and the writer do not wait for each other, and a commit syncs once. Kept in the
        # file; a file system that cannot do it stays with the rollback journal.
        connection.execute("PRAGMA journal_mode = WAL")
