import re

import pytest
from making import make_record, make_run

from tune_speed.core.comparability import Totals
from tune_speed.core.device import Device
from tune_speed.core.records import Status, Timing, TrialRecord
from tune_speed.core.words import ProposalReason
from tune_speed.reporting.leaderboard.ranking import make_boards
from tune_speed.reporting.listings.listings import listing
from tune_speed.reporting.trials.recipe_export import recipe_yaml
from tune_speed.reporting.trials.text import counts, describe, next_steps
from tune_speed.study.file import parse_recipe

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


def header_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("# ")]


def test_header_says_what_the_estimate_is_worth_and_what_it_cost() -> None:
    search = Totals(trials=60, reached=3, tuning_cost_s=60.0, device_s=49.0)
    text = recipe_yaml(trained(), run_id="abc", search=search, rerun="tune-speed train best.yaml")
    header = "\n".join(header_of(text))
    for part in (
        "this run alone, without the spread over seeds",
        "accuracy ≥ 0.9, fixed_length, on the validation part of digits",
        f"workload {'w' * 16}, search space {'s' * 16}, protocol 2",
        "60 trials, 49 device-seconds",
        "train it: tune-speed train best.yaml",
    ):
        assert part in header


def test_header_of_a_certified_recipe_has_its_hits_and_intervals() -> None:
    """3 of 4 hit: Wilson's interval of the rate is 0.30 to 0.95 (Wilson 1927)."""
    hits = tuple(make_run(time_s=1.0 + i / 10, seed=i) for i in range(3))
    runs = (*hits, make_run(Status.MISSED, time_s=1.0, seed=3))
    record = trained().model_copy(update={"runs": runs, "kind": "certified"})
    line = header_of(recipe_yaml(record, run_id=None))[1]
    assert "certified: 3 of 4 runs met the target (95 % interval of the rate: 0.30–0.95)" in line
    assert "expected time with restarts 1.43 (" in line and "median 1.15 (" in line


@pytest.mark.parametrize("break_", ["\n", "\r", "\x85", "\u2028", "\x00\x1b"])
def test_no_name_can_leave_the_header_or_spoil_the_file(break_: str) -> None:
    evil = f"evil{break_}recipe: evil"
    device = Device(type=f"cpu {evil}", threads=0)
    changes = {"device": device, "trial_id": evil, "finished_at": evil, "space_hash": evil}
    record = trained().model_copy(update={**changes, "environment": {"torch": evil}})
    text = recipe_yaml(record, run_id=evil, rerun=evil)
    assert parse_recipe(text, file="best.yaml").recipe.epochs == 2.5
    assert not any(line.startswith("recipe: evil") for line in text.splitlines())


def test_description_shows_curve_and_traceback() -> None:
    record = make_record(status=Status.FAILED)
    text = describe(record, run_id="abc")
    assert "Traceback: boom" in text
    assert "macro_f1" in text


def test_description_says_why_a_trial_was_proposed_and_stopped() -> None:
    record = make_record().model_copy(
        update={"proposal_reason": ProposalReason.model_validate("gain: 42% likely")}
    )
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


def test_next_steps_say_at_which_ends_of_ranges_the_best_lie_once() -> None:
    """However many boards the study has."""
    line = "lr, 3 of the best 3 at 0.1: better ones may lie above that"
    records = (make_record(), make_record(workload_hash="x" * 16))
    boards = make_boards([(None, r) for r in records], range_ends={"study": (line,)})
    assert len(boards) == 2
    text = next_steps(records, tuple(boards), study="study", folder="/f", uri="http://m")
    assert text.count(f"at the end of its range:  {line}") == 1


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
    assert "time_to_target_s         2 ± 1 (sd, n = 3; 95 %: 0.5776 to 6.926) s" in text


def test_description_of_several_runs_has_no_share_above_1() -> None:
    runs = tuple(make_run(accuracy=accuracy) for accuracy in (0.9, 1.0))
    text = describe(make_record(runs=runs), run_id=None)
    found = re.search(r"^  accuracy .*95 %: (\S+) to (\S+)\)", text, re.MULTILINE)
    assert found is not None
    assert 0 <= float(found[1]) < 0.95 < float(found[2]) <= 1


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


def test_last_lines_say_how_many_trials_mlflow_lacks() -> None:
    text = next_steps((), (), study="s", folder="/f", uri="http://m", num_undelivered=2)
    assert "all but 2 are in MLflow" in text and "every trial" not in text
