import re

import pytest
from making import make_record, make_run

from tune_speed.export import counts, describe, listing, next_steps, recipe_yaml
from tune_speed.leaderboard import make_boards
from tune_speed.records import Status, Timing, TrialRecord
from tune_speed.search.study_file import parse_recipe

RECIPE = {"model": {"resnet20": {}}, "optimizer": {"sgd": {"lr": 0.3}}, "epochs": 2.5}


def trained(**batch: object) -> TrialRecord:
    recipe = {**RECIPE, "batch_size": 64, "accumulation_steps": 2, **batch}
    return make_record().model_copy(update={"recipe": recipe, "cpu_threads": 3})


def test_exported_recipe_reads_back_with_seed_threads_and_device() -> None:
    record = trained().model_copy(update={"runs": (make_run(seed=17),)})
    file = parse_recipe(recipe_yaml(record, run_id="abc"), file="best.yaml")
    assert (file.run.seed, file.run.cpu_threads, file.run.device) == (17, 3, "cpu")
    assert file.recipe.epochs == 2.5
    assert file.workload.target.value == 0.9


def test_exported_recipe_holds_the_micro_batch_that_ran() -> None:
    """The run of `make_run` ended with a micro-batch of 32, after running out of memory with 64."""
    file = parse_recipe(recipe_yaml(trained(), run_id=None), file="best.yaml")
    assert (file.recipe.batch_size, file.recipe.accumulation_steps) == (32, 4)


def test_export_says_where_the_recipe_comes_from() -> None:
    header = recipe_yaml(trained(), run_id="abc").splitlines()[:4]
    assert all(line.startswith("# ") for line in header)
    for part in ("study/t0000", "abc", "1.000 s to target", "torch 2.15.0"):
        assert part in "\n".join(header)


def test_newline_in_a_device_name_cannot_leave_the_header() -> None:
    record = trained().model_copy(update={"device": "cpu\nrecipe: evil"})
    text = recipe_yaml(record, run_id=None)
    assert "\nrecipe: evil" not in text


def test_description_shows_curve_and_traceback() -> None:
    record = make_record(status=Status.FAILED)
    text = describe(record, run_id="abc")
    assert "Traceback: boom" in text
    assert "macro_f1" in text


def test_description_says_why_a_trial_was_proposed_and_stopped() -> None:
    record = make_record().model_copy(update={"proposal_reason": "gain: 42% likely"})
    text = describe(record, run_id=None)
    assert "proposed because gain: 42% likely\n" in text
    assert "ended as reached" in text


def test_counts_leave_out_what_did_not_occur() -> None:
    records = (make_record("t0000"), make_record("t0001", Status.OOM), make_record("t0002"))
    assert counts(records) == {"reached": 2, "oom": 1}


def test_next_steps_name_the_nearest_miss_where_nothing_hit() -> None:
    far, near = make_run(Status.MISSED, accuracy=0.3), make_run(Status.MISSED, accuracy=0.8)
    records = tuple(
        make_record(f"t000{i}", Status.MISSED, runs=(run,)) for i, run in enumerate((far, near))
    )
    boards = tuple(make_boards((None, record) for record in records))
    text = next_steps(records, boards, study="s", folder="/f", uri="sqlite:////f/mlflow.db")
    assert "nearest was t0001" in text
    assert "tune-speed best" not in text


@pytest.mark.parametrize(
    "what", ["models", "optimizers", "schedules", "datasets", "loaders", "orders"]
)
def test_listing_names_each_field(what: str) -> None:
    assert all(set(row) == {"name", "about", "fields"} for row in listing(what))


def test_listing_of_speedups_has_techniques_by_slot_and_plain_settings() -> None:
    rows = {row["name"]: row["where"] for row in listing("speedups")}
    assert rows["stochastic_depth"] == "speedups.depth"
    assert rows["precision"] == "recipe"
    assert len(rows) == len(listing("speedups"))


def test_description_has_every_metric_of_the_run_with_its_unit() -> None:
    text = describe(make_record(), run_id=None)
    assert re.search(r"^  epoch_s +1 s$", text, re.MULTILINE)
    assert re.search(r"^  peak_memory_frac +0\.5$", text, re.MULTILINE)
    assert "fed_ratio" not in text  # not stored in this record


def test_description_of_several_runs_has_mean_and_spread() -> None:
    """1, 2 and 3 s: mean 2, sample standard deviation 1, t(0.975, 2) = 4.303."""
    runs = tuple(make_run(time_s=time_s) for time_s in (1.0, 2.0, 3.0))
    text = describe(make_record(runs=runs), run_id=None)
    assert "time_to_target_s         2 ± 1 (sd, n = 3; 95 %: -0.4841 to 4.484) s" in text


def test_description_of_several_runs_names_each_time_and_what_the_clock_is() -> None:
    runs = (make_run(time_s=1.25), make_run(Status.MISSED), make_run(time_s=1.5))
    last = runs[-1].model_copy(
        update={
            "timing": Timing.ISOLATED,
            "shared_train_s": 3.0,
            "slowdown": 2.0,
            "cotenants": ("study/t0009",),
        }
    )
    text = describe(make_record(runs=(*runs[:2], last)), run_id="r")
    assert "2 of 3 met the target [s]: 1.250, ∞, 1.500" in text
    assert "isolated; 3.000 s passed, 2.00 times as long; beside study/t0009" in text
