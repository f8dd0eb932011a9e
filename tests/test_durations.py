"""`pytest --record-durations` and what `durations.py` makes of it."""

import subprocess
import sys
from pathlib import Path

import durations
import pytest

TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("durations") / "recorded.jsonl"
    files = [str(TESTS / "core" / name) for name in ("test_text.py", "test_targets.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    subprocess.run([*command, f"--record-durations={path}"], cwd=TESTS.parent, check=True)
    return path


def test_every_test_of_a_run_is_counted_once(recording: Path) -> None:
    lines = durations.read(recording)
    [core] = durations.by(lines, durations.room_of)
    files = durations.by(lines, durations.file_of)
    assert (core["name"], core["slow_tests"]) == ("core", 0)
    assert core["fast_tests"] == sum(row["fast_tests"] for row in files) > 10
    assert {row["name"] for row in files} == {"core/test_text.py", "core/test_targets.py"}
    assert 0 < core["cpu_s"] < 60
    assert core["fast_s"] == pytest.approx(sum(row["fast_s"] for row in files))


def test_fixtures_are_counted_by_how_often_they_were_set_up(recording: Path) -> None:
    lines = durations.read(recording)
    rows = {row["name"]: row for row in durations.fixtures(lines)}
    [core] = durations.by(lines, durations.room_of)
    assert rows["tests::_own_folders (function)"]["set_up"] == core["fast_tests"]
    assert rows["tests::session_cache (session)"]["set_up"] == 1


def test_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.jsonl").write_text("passed\n")
    with pytest.raises(SystemExit, match="--record-durations"):
        durations.read(tmp_path / "no.jsonl")
