import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tune_speed.core.errors import ServiceError, StorageError
from tune_speed.tracking import Store
from tune_speed.tracking.store import sqlite

OPEN = "import sys; from tune_speed.tracking import Store; Store(sys.argv[1]).create()"


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_new_store_is_whole_and_leaves_nothing_beside_it(empty_store: Path) -> None:
    with closing(sqlite3.connect(empty_store)) as connection:
        assert connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert not list(empty_store.parent.glob(".*"))


@pytest.mark.slow
def test_drivers_that_open_a_fresh_store_together_all_succeed_quietly(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'deep' / 'er' / 'mlflow.db'}"
    drivers = [start(OPEN, uri) for _ in range(2)]
    outputs = [driver.communicate(timeout=120) for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], outputs
    assert outputs == [("", "")] * 2


@pytest.mark.slow
def test_a_kill_in_the_middle_of_creation_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(tmp_path / "cache"))  # None is kept there.
    path = tmp_path / "mlflow.db"
    driver = start(OPEN, f"sqlite:///{path}")
    while not (tmp_path / ".mlflow.db.new").exists():
        assert driver.poll() is None
        time.sleep(0.001)
    driver.kill()
    driver.communicate(timeout=60)
    assert not path.exists()
    assert Store(f"sqlite:///{path}").create().search_experiments()
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def schema_of(path: Path) -> tuple[list[object], list[object]]:
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute("SELECT * FROM sqlite_master ORDER BY name").fetchall()
        return tables, connection.execute("SELECT * FROM alembic_version").fetchall()


@pytest.mark.slow
def test_a_copied_store_is_what_the_migrations_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(tmp_path / "cache"))
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    sqlite.create(first)
    monkeypatch.setattr(sqlite, "_migrate", lambda _: pytest.fail("it is to be copied"))
    sqlite.create(second)
    tables, version = schema_of(first)
    assert len(tables) > 50
    assert schema_of(second) == (tables, version)
    sqlite.check(second, writing=True)


@pytest.mark.slow
def test_a_damaged_copy_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(tmp_path / "cache"))
    sqlite.create(tmp_path / "first.db")
    (kept,) = (tmp_path / "cache" / "mlflow").glob("*.db")
    kept.write_bytes(kept.read_bytes()[: kept.stat().st_size // 2])
    sqlite.create(tmp_path / "second.db")
    sqlite.check(tmp_path / "second.db", writing=True)
    sqlite.check(kept, writing=True)


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").touch()
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(tmp_path / "cache"))
    sqlite.create(tmp_path / "mlflow.db")
    sqlite.check(tmp_path / "mlflow.db", writing=True)


def test_a_stale_log_beside_a_missing_store_is_not_replayed(
    tmp_path: Path, empty_store: Path
) -> None:
    (tmp_path / "mlflow.db-wal").write_bytes(b"left over from another store")
    (tmp_path / "mlflow.db").touch()
    sqlite.create(tmp_path / "mlflow.db")
    sqlite.check(tmp_path / "mlflow.db", writing=True)


@pytest.mark.parametrize(
    "content", [b"not a database at all " * 100, b"SQLite format 3\0" + b"x" * 500]
)
def test_a_file_that_is_no_database_is_refused_at_once(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mlflow.db").write_bytes(content)
    start_s = time.monotonic()
    with pytest.raises(StorageError, match=r"mlflow\.db must be a whole SQLite database.*--resume"):
        Store(f"sqlite:///{tmp_path / 'mlflow.db'}").create()
    assert time.monotonic() - start_s < 5


def test_a_truncated_store_is_refused(tmp_path: Path, empty_store: Path) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(empty_store.read_bytes()[: empty_store.stat().st_size // 2])
    with pytest.raises(StorageError, match="whole SQLite database"):
        Store(f"sqlite:///{path}").create()


def test_a_store_with_a_damaged_page_is_refused_in_one_line(
    tmp_path: Path, empty_store: Path
) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(empty_store.read_bytes()[:-4096] + b"noise" * 819 + b"\0")
    with pytest.raises(StorageError, match="whole SQLite database") as refused:
        Store(f"sqlite:///{path}").create()
    assert "\n" not in str(refused.value)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"File exists.*MLFLOW_TRACKING_URI"):
        Store(f"sqlite:///{tmp_path / 'file' / 'mlflow.db'}").create()


def test_a_folder_where_nothing_can_be_created_is_named() -> None:
    with pytest.raises(StorageError, match=r"/proc/mlflow\.db must be readable and writable"):
        Store("sqlite:////proc/mlflow.db").create()


def test_too_little_space_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "MIN_FREE_BYTES", 1 << 60)
    with pytest.raises(StorageError, match=r"free space.*MLFLOW_TRACKING_URI"):
        Store(f"sqlite:///{tmp_path / 'mlflow.db'}").create()


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Lets this process write no larger file, as if the disk were full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_disk_that_fills_up_during_creation_leaves_no_store(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch, is_copied: bool
) -> None:
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(tmp_path / "cache"))
    if is_copied:
        sqlite._cached().parent.mkdir(parents=True)
        shutil.copy(empty_store, sqlite._cached())
    uri = f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}"
    with (
        pytest.raises(StorageError, match="must be readable and writable, but got"),
        largest_file(200_000),
    ):
        Store(uri).create()
    assert list((tmp_path / "new").iterdir()) == []


def test_a_file_without_write_permission_is_refused(empty_store: Path) -> None:
    code = """
        import os, sys
        from pathlib import Path
        from tune_speed.core.errors import StorageError
        from tune_speed.tracking.store import sqlite
        if os.geteuid() == 0:
            os.setuid(65534)  # Root may write anywhere.
        try:
            sqlite.check(Path(sys.argv[1]), writing=True)
        except StorageError as error:
            print(error)
    """
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to other users.
        path = Path(shutil.copy(empty_store, folder))
        path.chmod(0o444)
        Path(folder).chmod(0o755)
        output, errors = start(code, str(path)).communicate(timeout=60)
    assert "Check the folder's permissions" in output, errors


def test_a_held_lock_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    with (
        sqlite.folder_lock(tmp_path, timeout_s=1),
        pytest.raises(ServiceError, match="another process holds them"),
        sqlite.folder_lock(tmp_path, timeout_s=0.2),
    ):
        pass
    with sqlite.folder_lock(tmp_path, timeout_s=0.2):
        pass


def test_analyze_gives_the_planner_statistics(tmp_path: Path, empty_store: Path) -> None:
    path = tmp_path / "mlflow.db"
    shutil.copy(empty_store, path)
    assert sqlite.analyze(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_stat1").fetchone()[0] > 0


def test_analyze_leaves_a_busy_store_alone(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "ANALYZE_BUSY_S", 0.05)
    path = tmp_path / "mlflow.db"
    shutil.copy(empty_store, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert not sqlite.analyze(path)


def test_analyze_leaves_a_damaged_store_alone(tmp_path: Path, empty_store: Path) -> None:
    pages = bytearray(empty_store.read_bytes())
    pages[8192:-8192] = b"noise" * (len(pages[8192:-8192]) // 5 + 1)
    (tmp_path / "mlflow.db").write_bytes(pages)
    assert not sqlite.analyze(tmp_path / "mlflow.db")


def rows_known(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        known = connection.execute("SELECT stat FROM sqlite_stat1 WHERE tbl = 'runs'")
        return [stat.split()[0] for (stat,) in known]


def add_runs(path: Path, numbers: range) -> None:
    with closing(sqlite3.connect(path)) as connection:
        rows = [(f"{number:032}", "active") for number in numbers]
        connection.executemany("INSERT INTO runs (run_uuid, lifecycle_stage) VALUES (?, ?)", rows)
        connection.commit()


def test_a_reader_makes_statistics_where_the_store_has_outgrown_them(
    tmp_path: Path, empty_store: Path
) -> None:
    path = Path(shutil.copy(empty_store, tmp_path / "mlflow.db"))
    assert not sqlite.analyze_if_outdated(path)  # Any plan is fast there.
    add_runs(path, range(1000))
    _ = Store(f"sqlite:///{path}").client
    assert rows_known(path)
    add_runs(path, range(1000, 3999))
    assert not sqlite.analyze_if_outdated(path)
    add_runs(path, range(3999, 4000))
    assert sqlite.analyze_if_outdated(path) and not sqlite.analyze_if_outdated(path)


def test_a_reader_that_may_not_write_reads_all_the_same(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "ANALYZE_BUSY_S", 0.05)
    path = Path(shutil.copy(empty_store, tmp_path / "mlflow.db"))
    add_runs(path, range(1000))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        assert not sqlite.analyze_if_outdated(path)
    assert not sqlite.analyze_if_outdated(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("no database at all")
    assert not sqlite.analyze_if_outdated(tmp_path / "text.db")
