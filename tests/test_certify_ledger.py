from pathlib import Path

import pytest
from making import make_record

from tune_speed.certify_ledger import CertifyLedger
from tune_speed.contest import Turn
from tune_speed.errors import ConfigError, StorageError

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
    with pytest.raises(StorageError, match="must be writable"):
        CertifyLedger(blocked / "certify-1.jsonl")
