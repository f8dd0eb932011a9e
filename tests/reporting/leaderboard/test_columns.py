import csv
import io
import json
from typing import Any

import pytest
from helpers.making import make_record, make_run
from helpers.tracking.stores import store_of

from tune_speed.api.results import Results
from tune_speed.cli.show import _listing
from tune_speed.core.records import TrialRecord
from tune_speed.core.words import read_notes
from tune_speed.reporting.leaderboard.ranking import make_boards
from tune_speed.reporting.leaderboard.tables import as_csv, as_json
from tune_speed.reporting.trials.comparison import compare_records
from tune_speed.reporting.trials.text import machine_row
from tune_speed.tracking.columns import COLUMNS, METRICS, BoardColumns, columns_of, run_metrics
from tune_speed.tracking.filter.where import parse_where


def record(trial_id: str = "t0000", **fields: Any) -> TrialRecord:
    own = {"slowdown": 1.5, "note": read_notes("re-clocked: 49.2 → 40.7 ms a step, by 2 windows")}
    own |= {"power_w": 200.0, "idle_power_w": 50.0}
    run = make_run().model_copy(update=own | fields)
    made = make_record(trial_id, runs=(run,))
    return made.model_copy(update={"prices": {str(made.device): 0.5}})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(store_of([record()], folder=tmp_path_factory.mktemp("columns")))


@pytest.mark.parametrize("name", columns_of(BoardColumns))
def test_column_of_boards_is_in_every_form(name: str, results: Results) -> None:
    value = COLUMNS[name].value(record())
    boards = make_boards([("run", record())])
    assert json.loads(as_json(boards))[0]["rows"][0][name] == value
    assert next(csv.DictReader(io.StringIO(as_csv(boards))))[name] == str(value)
    assert results.best()[name].tolist() == [value]
    if name not in ("study", "trial_id"):
        lines = compare_records([("run", record())]).lines
        assert [line.values for line in lines if line.name == name] == [(value,)]


@pytest.mark.parametrize("name", COLUMNS)
def test_column_is_in_listings_frames_and_filters(name: str, results: Results) -> None:
    column, value = COLUMNS[name], COLUMNS[name].value(record())
    assert machine_row(("run", record()))[name] == value
    assert name in results.trials("study").columns
    written = value if column.is_number else f"'{value}'"
    wanted = f"{name} = {written}" if value not in (None, "") else f"{name} is none or {name} = ''"
    assert parse_where(wanted).matches(record())
    (listed,) = (row for row in _listing("fields") if row["name"] == name)
    assert (listed["unit"], listed["about"]) == (column.unit, column.about)


@pytest.mark.parametrize("name", [name for name, each in COLUMNS.items() if each.is_metric])
def test_metric_of_a_run_is_explained(name: str) -> None:
    assert run_metrics(record().runs[0])[name] == COLUMNS[name].value(record())
    assert METRICS[name].about == COLUMNS[name].about


def test_share_of_the_memory_needs_a_limit() -> None:
    share = COLUMNS["peak_memory_frac"]
    assert share.value(record(peak_memory_gib=3.0, memory_limit_gib=4.0)) == 0.75
    assert share.value(record(memory_limit_gib=None)) is None
