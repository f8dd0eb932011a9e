import errno
import functools
import json
import math
import multiprocessing
import operator
import os
import resource
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_evaluation, make_record, make_run

from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.core.records import PROTOCOL_VERSION, Status, TrialRecord
from tune_speed.core.words import ProposalKind, ProposalReason
from tune_speed.tuning.driver.ledger import Ledger, PackedRecords
from tune_speed.tuning.driver.trial_files import read_trial_file, write_trial_file
from tune_speed.tuning.policy.base import Cost, Proposal


def proposal(number: int) -> Proposal:
    params = {"optimizer.sgd.lr": 0.1 * (number + 1)}
    reason = ProposalReason.of(ProposalKind.OTHER, text=f"because of {number}")
    return Proposal(f"t{number:04d}", params, reason)


def test_ledger_reads_back_what_was_written(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.begin({"study": "study"})
        ledger.proposed(proposal(0), seed=5)
        ledger.proposed(proposal(1), seed=6, cost=Cost(2.5, 10, 4.0))
        ledger.finished(make_record("t0000"))
    with Ledger(tmp_path) as ledger:
        assert ledger.header == {"study": "study"}
        assert ledger.records == {"t0000": make_record("t0000")}
        assert ledger.unfinished == (proposal(1),)
        assert ledger.costs == {"t0000": None, "t0001": Cost(2.5, 10, 4.0)}


def test_ledger_of_a_version_without_reasons_is_read(tmp_path: Path) -> None:
    old = {"event": "proposed", "trial_id": "t0000", "params": {"epochs": 2}, "seed": 5}
    (tmp_path / "ledger.jsonl").write_text(f"{json.dumps(old)}\n")
    with Ledger(tmp_path) as ledger:
        assert ledger.unfinished == (Proposal("t0000", {"epochs": 2}),)
        assert ledger.costs == {"t0000": None}


STEP_TIME = {"key": "k", "step_s": 0.1, "low_s": 0.1, "high_s": 0.2, "num_steps": 9}
STEP_TIME |= {"measured_in": "study/t0000", "reference_s": 0.1}
CURVE = {"train_s": [1.0], "metric": [0.5]}
PRIOR = {"params": {}, "status": "missed", "train_s": 1.0, "curve": CURVE, "same_times": True}
PRIOR |= {"memory_ratio": None, "planned_s": None}
DAMAGE: dict[str, tuple[str, Any]] = {
    "no runs": ("runs", []),
    "no evaluations": ("runs.0.evaluations", []),
    "a time below 0": ("runs.0.evaluations.0.train_s", -1.0),
    "a clock below 0": ("runs.0.clocks.train_s", -1.0),
    "no time": ("runs.0.time_to_target_s", None),
    "0 s": ("runs.0.time_to_target_s", 0.0),
    "no number": ("runs.0.time_to_target_s", math.nan),
    "without end": ("runs.0.clocks.wall_s", math.inf),
    "a step time that is not there": ("runs.0.shape_steps", [[0, 10]]),
    "a step of 0 s": ("step_times.0.step_s", 0.0),
    "a reference of 0 s": ("windows.0.reference_s", 0.0),
    "less than no steps": ("windows.0.num_steps", -1),
    "an earlier time below 0": ("trials.0.train_s", -1.0),
    "an earlier curve that is too short": ("trials.0.curve.metric", []),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_record_that_cannot_be_is_refused_with_file_and_line(damage: str, tmp_path: Path) -> None:
    path, value = DAMAGE[damage]
    record = make_record().model_dump(mode="json")
    event = {"event": "finished", "record": record}
    if not path.startswith("runs"):
        timed = {"windows": [dict(STEP_TIME)], "step_times": [dict(STEP_TIME)]}
        record = timed | {"study": "other", "trials": [{**PRIOR, "curve": dict(CURVE)}]}
        event = record | {"event": "warm_start" if path.startswith("trials") else "timed"}
    file = tmp_path / "ledger.jsonl"
    file.write_text(f'{{"event": "study"}}\n{json.dumps(event)}\n')
    with Ledger(tmp_path):
        pass
    *way, last = (int(name) if name.isdigit() else name for name in path.split("."))
    functools.reduce(operator.getitem, way, record)[last] = value  # type: ignore[index]
    file.write_text(f'{{"event": "study"}}\n{json.dumps(event)}\n')
    with pytest.raises(StorageError, match=r"ledger\.jsonl:2"):
        Ledger(tmp_path)


def test_torn_last_line_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.begin({"study": "study"})
        ledger.proposed(proposal(0), seed=5)
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event": "finished", "record": {"stu')
    with Ledger(tmp_path) as ledger:
        assert ledger.unfinished == (proposal(0),)
        ledger.proposed(proposal(1), seed=6)
    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert events == ["study", "proposed", "proposed"]


@pytest.mark.parametrize("damage", [b"not json", b'{"event": "finished", "record": {}}', b"[1]"])
def test_damaged_line_is_named(tmp_path: Path, damage: bytes) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.begin({"study": "study"})
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes() + damage + b"\n")
    with pytest.raises(StorageError, match=r"ledger\.jsonl:2: every line must be an event"):
        Ledger(tmp_path)


def _study(folder: Path) -> list[str]:
    with Ledger(folder) as ledger:
        ledger.begin({"study": "study"})
        for number in range(2):
            ledger.proposed(proposal(number), seed=number)
            ledger.finished(make_record(f"t{number:04d}"))
    return (folder / "ledger.jsonl").read_text().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("order", "line", "said"),
    [
        ([4, 3, 2, 1, 0], 2, "t0001 must be proposed before it finishes"),
        ([0, 2, 1, 3, 4], 3, "t0000 must be proposed before it finishes"),
        ([1, 2, 0, 3, 4], 3, "must begin with its event `study`"),
    ],
)
def test_misplaced_event_is_named(tmp_path: Path, order: list[int], line: int, said: str) -> None:
    lines = _study(tmp_path)
    (tmp_path / "ledger.jsonl").write_text("".join(lines[number] for number in order))
    with pytest.raises(StorageError, match=rf"ledger\.jsonl:{line}: .*{said}.*--from-mlflow"):
        Ledger(tmp_path)


def test_ledger_of_two_studies_is_refused_and_doubled_lines_are_not(tmp_path: Path) -> None:
    lines = _study(tmp_path)
    (tmp_path / "ledger.jsonl").write_text("".join(line * 2 for line in lines) + "".join(lines))
    with Ledger(tmp_path) as ledger:
        assert list(ledger.records) == list(ledger.proposals) == ["t0000", "t0001"]
        assert ledger.unproposed == set()
    other = lines[0].replace('"study": "study"', '"study": "b"')
    (tmp_path / "ledger.jsonl").write_text("".join([*lines, other]))
    with pytest.raises(StorageError, match=r"ledger\.jsonl:6: .*`study` and have no other"):
        Ledger(tmp_path)


def test_finished_trial_needs_no_proposal(tmp_path: Path) -> None:
    lines = _study(tmp_path)
    (tmp_path / "ledger.jsonl").write_text("".join(lines[i] for i in (0, 1, 2, 4)))
    with Ledger(tmp_path) as ledger:
        assert ledger.unproposed == {"t0001"}
        assert ledger.proposals["t0001"].params == make_record("t0001").params
        assert ledger.unfinished == ()


def test_named_pipe_is_no_ledger(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ledger.jsonl")  # Reading it would wait forever.
    with pytest.raises(StorageError, match=r"ledger\.jsonl must be a regular file"):
        Ledger(tmp_path)


def test_what_is_in_the_way_of_the_ledger_is_named(tmp_path: Path) -> None:
    (tmp_path / "a" / "ledger.jsonl").mkdir(parents=True)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"jsonl cannot be written: it is a folder\. Move"):
        Ledger(tmp_path / "a")
    with pytest.raises(StorageError, match=rf"{tmp_path}/file is a file, and must be a folder"):
        Ledger(tmp_path / "file" / "b")


def test_study_that_never_began_leaves_no_folder(tmp_path: Path) -> None:
    with Ledger(tmp_path / "studies" / "tiny"):
        assert (tmp_path / "studies" / "tiny" / "ledger.jsonl").exists()
    assert list(tmp_path.iterdir()) == []


def test_study_that_never_began_leaves_alone_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "notes.txt").touch()
    with Ledger(tmp_path / "tiny"):
        pass
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["notes.txt"]
    with Ledger(tmp_path / "tiny") as ledger:
        ledger.begin({"study": "study"})
    assert (tmp_path / "tiny" / "ledger.jsonl").exists()


def test_second_driver_is_refused(tmp_path: Path) -> None:
    with Ledger(tmp_path), pytest.raises(ConfigError, match="one process at a time"):
        Ledger(tmp_path)
    with Ledger(tmp_path) as ledger:
        assert ledger.header is None


def _write_until_killed(folder: Path) -> None:
    ledger = Ledger(folder)
    for number in range(100_000):
        ledger.proposed(proposal(number), seed=number)


def test_killed_driver_leaves_whole_lines_and_no_lock(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=_write_until_killed, args=(tmp_path,))
    process.start()
    path = tmp_path / "ledger.jsonl"
    deadline = time.monotonic() + 60
    while not path.exists() or path.stat().st_size < 2000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with Ledger(tmp_path) as ledger:
        assert list(ledger.proposals) == [f"t{i:04d}" for i in range(len(ledger.proposals))]
        assert len(ledger.proposals) > 10


def test_full_disk_keeps_the_last_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path)
    ledger.proposed(proposal(0), seed=0)
    real_write = os.write

    def write_on_full_disk(file: int, data: bytes) -> int:
        if (tmp_path / ".ballast").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(file, data)

    monkeypatch.setattr(os, "write", write_on_full_disk)
    with pytest.raises(StorageError, match=r"No space left.*--resume"):
        ledger.finished(make_record("t0000"))
    ledger.close()
    monkeypatch.undo()
    with Ledger(tmp_path) as again:
        assert list(again.records) == ["t0000"]


def _write_with_file_limit(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
    with Ledger(folder) as ledger:
        for number in range(100_000):
            ledger.proposed(Proposal(f"t{number:04d}", {"name": "x" * 10_000}), seed=0)


def test_write_that_stops_half_way_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        error = pool.submit(_write_with_file_limit, tmp_path).exception()
    assert isinstance(error, StorageError)
    assert "File too large" in str(error)
    data = (tmp_path / "ledger.jsonl").read_bytes()
    assert data.endswith(b"}\n")
    assert len(data) > (2 << 20) - 20_000


def test_record_of_a_trial_process_is_found_after_the_driver_died(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.proposed(proposal(0), seed=0)
        ledger.proposed(proposal(1), seed=1)
        write_trial_file(tmp_path, make_record("t0000"))
    for _ in range(2):
        with Ledger(tmp_path) as ledger:
            assert list(ledger.records) == ["t0000"]
            assert [p.trial_id for p in ledger.unfinished] == ["t0001"]


@pytest.mark.parametrize("content", ["", "{", "{}"])
def test_half_written_trial_file_is_no_record(tmp_path: Path, content: str) -> None:
    with Ledger(tmp_path):
        (tmp_path / "trials" / "t0000.json").write_text(content)
    assert read_trial_file(tmp_path, "t0000") is None


def test_trial_file_is_not_written_where_the_folder_is_not_visible(tmp_path: Path) -> None:
    elsewhere: Any = tmp_path / "other_node"
    write_trial_file(elsewhere, make_record())
    assert not elsewhere.exists()


def test_second_record_of_a_trial_is_our_bug(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.proposed(proposal(0), seed=0)
        ledger.finished(make_record("t0000"))
        with pytest.raises(AssertionError, match="finished twice"):
            ledger.finished(make_record("t0000"))


@pytest.mark.parametrize(
    ("number", "change", "said"),
    [
        (2, ("metric", "metric"), None),
        (2, ('"seed": 0', '"seed": 1'), "record of t0000 must be written once, but line 3 has"),
        (1, ("0.1}", "0.2}"), "tried as t0000 must be written once, but line 2 has"),
        (2, ('"study": "study"', '"study": "b"'), "t0000 must be of study study, but is of b"),
        (1, ("proposed", "prposed"), "has no event 'prposed'"),
    ],
)
def test_line_that_contradicts_an_earlier_one_is_named_with_it(
    tmp_path: Path, number: int, change: tuple[str, str], said: str | None
) -> None:
    lines = _study(tmp_path)
    changed = lines[number].replace(*change)
    (tmp_path / "ledger.jsonl").write_text("".join([*lines, changed]))
    if said is None:
        with Ledger(tmp_path) as ledger:
            assert ledger.records["t0000"] == make_record("t0000")
        return
    assert changed != lines[number]
    with pytest.raises(StorageError, match=rf"ledger\.jsonl:6: .*{said}"):
        Ledger(tmp_path)


def test_doubled_record_keeps_the_clock_that_it_got_in_between(tmp_path: Path) -> None:
    lines = _study(tmp_path)
    with Ledger(tmp_path) as ledger:
        ledger.records.reclock({})
        before = ledger.records._packed["t0000"]
    (tmp_path / "ledger.jsonl").write_text(
        "".join([*lines, '{"event": "timed", "windows": [], "step_times": []}\n', lines[2]])
    )
    with Ledger(tmp_path) as ledger:
        assert ledger.records._packed["t0000"] == before


def test_events_of_a_later_protocol_are_left_to_the_header_to_refuse(tmp_path: Path) -> None:
    header = {"event": "study", "study": "a", "protocol_version": PROTOCOL_VERSION + 1}
    (tmp_path / "ledger.jsonl").write_text(f'{json.dumps(header)}\n{{"event": "danced"}}\n')
    with Ledger(tmp_path) as ledger:
        assert ledger.header is not None and ledger.proposals == {}


def test_read_only_disk_is_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with (
        monkeypatch.context() as patch,
        pytest.raises(StorageError) as raised,
        Ledger(tmp_path) as ledger,
    ):
        for name in ("write", "ftruncate", "unlink"):
            patch.setattr(os, name, refuse)
        patch.setattr(Path, "unlink", refuse)
        ledger.begin({"study": "a"})
    assert "Read-only file system. Mount the disk" in str(raised.value)
    Ledger(tmp_path).close()  # It was let go.


def with_curve(trial_id: str, *, num_evaluations: int) -> TrialRecord:
    curve = tuple(make_evaluation(step=i, train_s=i / 7) for i in range(num_evaluations))
    run = make_run(Status.MISSED).model_copy(update={"evaluations": curve})
    return make_record(trial_id).model_copy(update={"runs": (run,)})


def test_records_come_out_equal_and_in_order() -> None:
    long = with_curve("t0001", num_evaluations=50)
    records = PackedRecords()
    records.add(long)
    records.add(make_record("t0000"))
    assert list(records.items()) == [("t0001", long), ("t0000", make_record("t0000"))]
    assert records == {"t0001": long, "t0000": make_record("t0000")}


def test_names_are_known_without_unpacking() -> None:
    records = PackedRecords()
    records.add(make_record("t0000"))
    assert ("t0000" in records, "t0001" in records, len(records)) == (True, False, 1)
    assert records.get("t0001") is None


def test_a_packed_record_is_a_quarter_of_its_text_or_less() -> None:
    record = with_curve("t0000", num_evaluations=200)
    records = PackedRecords()
    records.add(record)
    assert len(records._packed["t0000"]) < len(record.model_dump_json()) / 4
