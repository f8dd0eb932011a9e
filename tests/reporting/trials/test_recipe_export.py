import re
from typing import Any

import pytest
from helpers.making import make_record, make_run

from tune_speed.core.comparability import Totals
from tune_speed.core.records import Status, Timing, TrialRecord
from tune_speed.core.words import Device
from tune_speed.reporting.leaderboard.ranking import make_boards
from tune_speed.reporting.listings.listings import listing
from tune_speed.reporting.trials.recipe_export import recipe_yaml
from tune_speed.reporting.trials.text import counts, describe, next_steps
from tune_speed.study.file import parse_recipe

Kept = Any
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


@pytest.mark.parametrize("break_", ["\n", "\r", "\x85", "\u2028", "\x00\x1b"])
def test_no_name_can_leave_the_header_or_spoil_the_file(break_: str) -> None:
    evil = f"evil{break_}recipe: evil"
    device = Device(type=f"cpu {evil}", threads=0)
    changes = {"device": device, "trial_id": evil, "finished_at": evil, "space_hash": evil}
    record = trained().model_copy(update={**changes, "environment": {"torch": evil}})
    text = recipe_yaml(record, run_id=evil, rerun=evil)
    assert parse_recipe(text, file="best.yaml").recipe.epochs == 2.5
    assert not any(line.startswith("recipe: evil") for line in text.splitlines())


def test_counts_leave_out_what_did_not_occur() -> None:
    records = (make_record("t0000"), make_record("t0001", Status.OOM), make_record("t0002"))
    assert counts(records) == {"reached": 2, "oom": 1}


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


def test_description_of_several_runs_has_no_share_above_1() -> None:
    runs = tuple(make_run(accuracy=accuracy) for accuracy in (0.9, 1.0))
    text = describe(make_record(runs=runs), run_id=None)
    found = re.search(r"^  accuracy .*95 %: (\S+) to (\S+)\)", text, re.MULTILINE)
    assert found is not None
    assert 0 <= float(found[1]) < 0.95 < float(found[2]) <= 1


HITS = tuple(make_run(time_s=1.0 + i / 10, seed=i) for i in range(3))
SEARCH = Totals(trials=60, reached=3, tuning_cost_s=60.0, device_s=49.0)


def test_header_of_an_estimate_and_of_a_certified_recipe(kept_text: Kept) -> None:
    """3 of 4 hit: Wilson's interval of the rate is 0.30 to 0.95 (Wilson 1927)."""
    runs = (*HITS, make_run(Status.MISSED, time_s=1.0, seed=3))
    certified = trained().model_copy(update={"runs": runs, "kind": "certified"})
    texts = [
        recipe_yaml(trained(), run_id="abc", search=SEARCH, rerun="tune-speed train best.yaml"),
        recipe_yaml(certified, run_id=None),
    ]
    lines = [line for text in texts for line in text.splitlines() if line.startswith("#")]
    kept_text("\n".join(lines))


ISOLATED = {
    "timing": Timing.ISOLATED,
    "shared_train_s": 3.0,
    "slowdown": 2.0,
    "cotenants": ("study/t0009",),
}
DESCRIBED: dict[str, TrialRecord] = {
    "proposed": make_record().model_copy(update={"proposal_reason": "gain: 42% likely"}),
    "failed": make_record(status=Status.FAILED),
    # 1, 2 and 3 s: mean 2, sample standard deviation 1, t(0.975, 2) = 4.303.
    "mean and spread": make_record(runs=tuple(make_run(time_s=t) for t in (1.0, 2.0, 3.0))),
    "misses and others on the device": make_record(
        runs=(
            make_run(time_s=1.25),
            make_run(Status.MISSED),
            make_run(time_s=1.5).model_copy(update=ISOLATED),
        )
    ),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_description_of_a_trial(name: str, kept_text: Kept) -> None:
    # The rounding of equal values differs between processors.
    kept_text(re.sub(r"± \S+e-1\d", "± 0", describe(DESCRIBED[name], run_id="abc")))


def test_next_steps_after_misses_and_with_trials_that_mlflow_lacks(kept_text: Kept) -> None:
    runs = (make_run(Status.MISSED, accuracy=0.3), make_run(Status.MISSED, accuracy=0.8))
    records = tuple(
        make_record(f"t000{i}", Status.MISSED, runs=(run,)) for i, run in enumerate(runs)
    )
    boards = tuple(make_boards((None, record) for record in records))
    own = {"study": "s", "folder": "/f"}
    kept_text(next_steps(records, boards, uri="sqlite:////f/mlflow.db", **own), "missed")
    kept_text(next_steps((), (), uri="http://m", num_undelivered=2, **own), "undelivered")
