from pathlib import Path

import pytest
from helpers.making import make_record

from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.experiments.certification.schedule import CertifyLedger, Turn

HEADER = {"top": 2, "finalists": ["s/t0001", "s/t0002"]}


def turn(number: int) -> Turn:
    return Turn("first", number, "s/t0001", 2**31 + number)


def test_runs_are_there_again_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "certify-1.jsonl"
    with CertifyLedger(path) as ledger:
        ledger.begin(HEADER)
        ledger.ran(turn(0), make_record())
    with CertifyLedger(path) as ledger:
        ledger.begin(HEADER)
        assert [(ran.turn, ran.record) for ran in ledger.runs] == [(turn(0), make_record())]


def test_a_line_cut_short_by_a_kill_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "certify-1.jsonl"
    with CertifyLedger(path) as ledger:
        ledger.begin(HEADER)
        ledger.ran(turn(0), make_record())
        ledger.ran(turn(1), make_record())
    path.write_bytes(path.read_bytes()[:-20])
    with CertifyLedger(path) as ledger:
        assert [ran.turn for ran in ledger.runs] == [turn(0)]
        ledger.ran(turn(1), make_record())
    with CertifyLedger(path) as ledger:
        assert [ran.turn for ran in ledger.runs] == [turn(0), turn(1)]


def test_other_options_are_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "certify-1.jsonl"
    with CertifyLedger(path) as ledger:
        ledger.begin(HEADER)
        with pytest.raises(ConfigError, match=r"top = 2, now 3.*--again"):
            ledger.begin({**HEADER, "top": 3})


def test_what_differs_is_told_by_field_whatever_python_calls_it(tmp_path: Path) -> None:
    with CertifyLedger(tmp_path / "certify-1.jsonl") as ledger:
        ledger.begin(HEADER)
        assert ledger.differences({**HEADER, "finalists": ("s/t0001", "s/t0002")}) == []
        assert ledger.differences({**HEADER, "leader": "s/t0009"}) == ["leader = None, now s/t0009"]


def test_what_surrounds_the_runs_is_kept_first_and_last(tmp_path: Path) -> None:
    path = tmp_path / "certify-1.jsonl"
    with CertifyLedger(path) as ledger:
        ledger.begin(HEADER)
        for load in (1, 2):
            ledger.described("s/t0001", {"load": load})
        assert ledger.last_facts == {}
        ledger.described("s/t0001", {"load": 3}, is_last=True)
    with CertifyLedger(path) as ledger:
        facts = ledger.first_facts["s/t0001"], ledger.last_facts["s/t0001"]
        assert facts == ({"load": 1}, {"load": 3})


def test_two_processes_cannot_certify_one_study(tmp_path: Path) -> None:
    path = tmp_path / "certify-1.jsonl"
    with CertifyLedger(path), pytest.raises(ConfigError, match="one process at a time"):
        CertifyLedger(path)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "certify-1.jsonl"
    path.write_text('{"event": "begin"}\n{"event": "run"}\n')
    with pytest.raises(StorageError, match=r"certify-1\.jsonl:2"):
        CertifyLedger(path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        CertifyLedger(blocked / "certify-1.jsonl")


def test_run_counts_once_and_two_records_of_it_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "certify-1.jsonl"
    with CertifyLedger(path) as ledger:
        ledger.begin(HEADER)
        ledger.ran(turn(0), make_record())
    text = path.read_text()
    line = text.splitlines()[1]
    path.write_text(f"{text}{line}\n")
    with CertifyLedger(path) as ledger:
        assert len(ledger.runs) == 1
    for other in (
        line.replace('"trial_id": "t0000"', '"trial_id": "t0001"'),
        line.replace('"run"', '"ron"'),
    ):
        path.write_text(f"{text}{other}\n")
        with pytest.raises(StorageError, match=r"certify-1\.jsonl:3: "):
            CertifyLedger(path)
