import io
import json

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


def test_each_board_has_a_table_under_its_device() -> None:
    text = shown(make_record("t0000", device="H200"), make_record("t0000", device="A100"))
    assert text.index("estimates, on H200") < text.index("estimates, on A100")
    assert text.count("time to target [s]") == 2


def test_a_miss_has_no_time_and_what_was_chosen_stands_below() -> None:
    lines = shown(make_record("t0004", Status.MISSED, params={"optimizer.sgd.lr": 0.25}))
    row = next(line for line in lines.splitlines() if line.startswith("t0004  missed"))
    assert "–" in row
    assert "t0004  lr=0.25" in lines


def test_only_certified_trials_have_hits() -> None:
    runs = (make_run(time_s=1.0), make_run(time_s=2.0), make_run(Status.MISSED))
    assert "hits" not in shown(make_record())
    assert "hits" in shown(make_record(kind="certified", runs=runs))


def test_names_are_no_markup_and_no_trials_are_told() -> None:
    assert "[red]<script>" in shown(make_record("[red]<script>"))
    assert "No finished trial" in shown()


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
