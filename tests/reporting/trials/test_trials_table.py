import io
import json
from collections.abc import Callable

import pytest
from helpers.making import make_record, make_run
from rich.console import Console

from tune_speed.core.records import Status, TrialRecord
from tune_speed.reporting.trials import text
from tune_speed.tracking.columns import COLUMNS


def shown(*records: TrialRecord) -> str:
    console = Console(width=120, file=io.StringIO())
    trials = [(f"{number:032d}", record) for number, record in enumerate(records)]
    with console.capture() as captured:
        console.print(text.as_renderable(trials))
    return captured.get()


def test_machines_get_every_field_unrounded() -> None:
    row = text.machine_row(("run", make_record(time_s=1 / 3)))
    assert set(row) == {"run_id", *COLUMNS, "params"}
    assert json.loads(json.dumps(row))["time_to_target_s"] == 1 / 3
    other = make_record("t0001").model_copy(update={"params": {"epochs": 3}})
    rows = text.csv_rows([("run", make_record()), ("other", other)])
    assert [row["params.optimizer.sgd.lr"] for row in rows] == [0.1, None]
    assert [row["params.epochs"] for row in rows] == [None, 3] and "params" not in rows[0]


def test_markdown_does_nothing_with_names() -> None:
    row = text.markdown_row(("run", make_record("<b>|")))
    assert row["trial_id"] == "\\<b\\>\\|"


RUNS = (make_run(time_s=1.0), make_run(time_s=2.0), make_run(Status.MISSED))
SHOWN = {
    "none": [],
    "two devices": [make_record(device="H200"), make_record(device="A100")],
    "a miss": [make_record("t0004", Status.MISSED, params={"optimizer.sgd.lr": 0.25})],
    "certified": [make_record(kind="certified", runs=RUNS)],
    "markup": [make_record("[red]<script>")],
}


@pytest.mark.parametrize("name", SHOWN)
def test_trials_in_a_terminal(name: str, kept_text: Callable[[str], None]) -> None:
    kept_text("\n".join(line.rstrip() for line in shown(*SHOWN[name]).splitlines()))
