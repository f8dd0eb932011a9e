from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_record
from helpers.texts import Texts

from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.experiments.ablation.result import AblationLedger, Tried, Turn

HEADER: dict[str, Any] = {
    "seeds": 5,
    "arms": {"base": "0a", "precision=bf16": "1b"},
    "workload": "2c",
    "fields": {"workload": {"target": {"value": 0.9}}, "recipe": {"epochs": 1, "model": "a"}},
}
TURN, TRIED = Turn("base", 0), Tried("precision=bf16", 0.3, 1_000_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ablation-1.jsonl"
    with AblationLedger(path) as ledger:
        ledger.begin(HEADER)
        ledger.add(TRIED, make_record("t0009"))
        ledger.add(TURN, make_record())
    return path


def refusal(path: Path, **changes: Any) -> str:
    with AblationLedger(path) as ledger, pytest.raises(ConfigError) as refused:
        ledger.begin({**HEADER, **changes})
    return str(refused.value)


def fields(**changes: Any) -> dict[str, Any]:
    return {**HEADER["fields"], **changes}


def test_runs_are_there_again_after_a_restart(path: Path) -> None:
    with AblationLedger(path) as ledger:
        ledger.begin(HEADER)
        assert ledger.of(Turn) == {TURN: make_record()}
        assert ledger.of(Tried) == {TRIED: make_record("t0009")}


CHANGED: dict[str, dict[str, Any]] = {
    "seeds": {"seeds": 3},
    "base": {
        "arms": {"base": "9", "precision=bf16": "8"},
        "fields": fields(recipe={"epochs": 2, "batch_size": 8}),
    },
    "workload": {"workload": "3d", "fields": fields(workload={"target": {"value": 0.8}})},
    "an arm is gone": {"arms": {"base": "0a"}},
    "an arm is new": {"arms": {**HEADER["arms"], "epochs=2": "3"}},
    "an arm is another": {"arms": {**HEADER["arms"], "precision=bf16": "4"}},
}


def test_what_differs_is_named_with_both_values(path: Path, kept_text: Texts) -> None:
    told = (f"{name}: {refusal(path, **changes)}\n" for name, changes in CHANGED.items())
    kept_text("".join(told).replace(str(path.parent), "FOLDER"))


def test_what_an_earlier_version_did_not_write_down_is_no_difference(path: Path) -> None:
    with AblationLedger(path) as ledger:
        ledger.begin({**HEADER, "machine": "cpu (AMD EPYC)"})
    earlier = path.with_name("ablation-2.jsonl")
    with AblationLedger(earlier) as ledger:
        ledger.begin({name: value for name, value in HEADER.items() if name != "fields"})
        ledger.begin(HEADER)
    assert "differs: workload (" in refusal(earlier, workload="3d")
    assert "differs: recipe (" in refusal(earlier, arms={**HEADER["arms"], "base": "9"})


@pytest.mark.parametrize("change", [('"t0000"', '"t0001"'), ('"ran"', '"run"')])
def test_run_with_two_records_or_of_an_unknown_kind_is_damage(
    path: Path, change: tuple[str, str]
) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[-1]]))
    AblationLedger(path).__exit__()
    path.write_text("\n".join([*lines, lines[-1].replace(*change)]))
    with pytest.raises(StorageError, match=r"ablation-1\.jsonl:4: "):
        AblationLedger(path)
