from pathlib import Path

import pytest
from helpers.making import make_record

from tune_speed.core.errors import StorageError
from tune_speed.experiments.certification.schedule import CertifyLedger, Turn

HEADER = {"top": 2, "finalists": ["s/t0001", "s/t0002"]}


def turn(number: int) -> Turn:
    return Turn("first", number, "s/t0001", 2**31 + number)


def test_runs_are_there_again_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "certify-1.jsonl"
    with CertifyLedger(path) as ledger:
        ledger.begin(HEADER)
        ledger.add(turn(0), make_record())
    with CertifyLedger(path) as ledger:
        ledger.begin(HEADER)
        assert ledger.records == {turn(0): make_record()}


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


def test_run_counts_once_and_two_records_of_it_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "certify-1.jsonl"
    with CertifyLedger(path) as ledger:
        ledger.begin(HEADER)
        ledger.add(turn(0), make_record())
    text = path.read_text()
    line = text.splitlines()[1]
    path.write_text(f"{text}{line}\n")
    with CertifyLedger(path) as ledger:
        assert len(ledger.records) == 1
    for other in (
        line.replace('"trial_id": "t0000"', '"trial_id": "t0001"'),
        line.replace('"run"', '"ron"'),
    ):
        path.write_text(f"{text}{other}\n")
        with pytest.raises(StorageError, match=r"certify-1\.jsonl:3: "):
            CertifyLedger(path)
