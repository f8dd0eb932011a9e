from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_record

from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.experiments.ablation.ledger import AblationLedger, Tried, Turn

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
        ledger.add_tried(TRIED, make_record("t0009"))
        ledger.add_run(TURN, make_record())
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
        assert ledger.runs == {TURN: make_record()}
        assert ledger.tried == {TRIED: make_record("t0009")}


def test_line_cut_short_by_a_kill_is_run_again(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])
    with AblationLedger(path) as ledger:
        assert (ledger.runs, list(ledger.tried)) == ({}, [TRIED])
        ledger.add_run(TURN, make_record())
    with AblationLedger(path) as ledger:
        assert list(ledger.runs) == [TURN]


def test_what_differs_is_named_with_both_values(path: Path) -> None:
    message = refusal(path, seeds=3)
    assert "but differs: seeds = 5, now 3 (" in message
    assert str(path) in message and "--again" in message


def test_changed_base_is_named_by_its_fields_and_not_by_every_arm(path: Path) -> None:
    recipe = {"epochs": 2, "batch_size": 8}
    message = refusal(path, arms={"base": "9", "precision=bf16": "8"}, fields=fields(recipe=recipe))
    told = "recipe.epochs = 1, now 2; recipe.model = a, now None; recipe.batch_size = None, now 8 ("
    assert f"differs: {told}" in message


def test_changed_workload_is_named_by_its_fields(path: Path) -> None:
    other = fields(workload={"target": {"value": 0.8}})
    message = refusal(path, workload="3d", fields=other)
    assert "differs: workload.target.value = 0.9, now 0.8 (" in message


@pytest.mark.parametrize(
    ("arms", "named"),
    [
        ({"base": "0a"}, "precision=bf16"),
        ({**HEADER["arms"], "epochs=2": "3"}, "epochs=2"),
        ({**HEADER["arms"], "precision=bf16": "4"}, "precision=bf16"),
    ],
)
def test_arms_that_are_gone_new_or_other_are_named(
    path: Path, arms: dict[str, str], named: str
) -> None:
    assert f"differs: arms {named} (" in refusal(path, arms=arms)


def test_what_an_earlier_version_did_not_write_down_is_no_difference(path: Path) -> None:
    with AblationLedger(path) as ledger:
        ledger.begin({**HEADER, "machine": "cpu (AMD EPYC)"})
    earlier = path.with_name("ablation-2.jsonl")
    with AblationLedger(earlier) as ledger:
        ledger.begin({name: value for name, value in HEADER.items() if name != "fields"})
        ledger.begin(HEADER)
    assert "differs: workload (" in refusal(earlier, workload="3d")
    assert "differs: recipe (" in refusal(earlier, arms={**HEADER["arms"], "base": "9"})


def test_two_processes_cannot_run_one_ablation(path: Path) -> None:
    with AblationLedger(path), pytest.raises(ConfigError, match="an ablation must be run by one"):
        AblationLedger(path)


@pytest.mark.parametrize(
    "line",
    ['{"event": "ran"}', '{"event": "other", "record": {}}', '{"arm": "base"}', "[]", "{"],
)
def test_damaged_line_is_named(path: Path, line: str) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[2:]]) + "\n")
    with pytest.raises(StorageError, match=r"ablation-1\.jsonl:2: .* an ablation from scratch"):
        AblationLedger(path)
    path.write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    AblationLedger(path).__exit__()  # Nobody holds it any more.


def test_runs_of_which_nobody_knows_what_they_are_of_are_refused(path: Path) -> None:
    path.write_text("\n".join(path.read_text().splitlines()[1:]) + "\n")
    with pytest.raises(StorageError, match=r"ablation-1\.jsonl:1"):
        AblationLedger(path)


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
