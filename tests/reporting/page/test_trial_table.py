from helpers.reporting.pages import certified, ordinary, trained, viewed

from tune_speed.core.records import Status, TrialRecord
from tune_speed.reporting.page.trial_table import TrialTable, trial_anchors, trial_table


def table(records: list[TrialRecord]) -> TrialTable:
    (part,) = (view := viewed(records)).parts
    return trial_table(part, anchors=trial_anchors(view.parts))


def test_fastest_stand_first_and_then_who_came_nearest() -> None:
    ids = [row.trial.record.trial_id for row in table(ordinary()[::-1]).rows]
    # The accuracy of a miss grows with its time; t0005 trained 2.0 s, t0009 4.0 s.
    assert ids[:10] == [
        *("t0000", "t0001", "t0002", "t0003", "t0004"),
        *("t0009", "t0008", "t0007", "t0006", "t0005"),
    ]


def test_missing_values_have_an_empty_key() -> None:
    found = table([trained("t0000"), trained("t0001", Status.MISSED)])
    time = [column.name for column in found.columns].index("time_to_target_s")
    assert [row.cells[time].key for row in found.rows] == ["1.0", ""]


def test_each_searched_parameter_has_a_column() -> None:
    records = [
        trained("t0000", params={"optimizer": "sgd", "optimizer.sgd.lr": 0.1}),
        trained("t0001", params={"optimizer": "adamw", "optimizer.adamw.lr": 0.2}),
    ]
    columns = table(records).columns[6:]
    assert [c.name for c in columns] == ["optimizer", "optimizer.sgd.lr", "optimizer.adamw.lr"]
    assert [c.label for c in columns] == ["optimizer", "sgd.lr", "adamw.lr"]
    assert [c.is_number for c in columns] == [False, True, True]


def test_ways_to_end_are_counted() -> None:
    assert dict(table(ordinary()).statuses) == {
        "reached": 5,
        "missed": 5,
        "stopped": 1,
        "failed": 1,
    }


def test_exact_values_and_the_way_back_fold_out() -> None:
    facts = dict(table([trained("t0000", time_s=1 / 3)]).rows[0].facts)
    assert facts["Searched"] == f"optimizer.sgd.lr = {0.1 / 3}, batch_size = 64"
    assert facts["Again"] == f"tune-speed train {0:032x}"


def test_anchors_stay_apart_where_an_id_recurs() -> None:
    view = viewed([trained("t0000"), trained("t0000", device="other")])
    assert sorted(trial_anchors(view.parts).values()) == ["trial-t0000", "trial-t0000--2"]


def test_certified_run_leads_to_the_trial_that_it_repeats() -> None:
    view = viewed([trained("t0000"), certified("t0000", 1.0, 2.0), certified("t0001", 1.0, 2.0)])
    assert trial_anchors(view.parts) == {f"{i:032x}": "trial-t0000" for i in range(2)}
