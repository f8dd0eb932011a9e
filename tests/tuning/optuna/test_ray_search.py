import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from tune_speed.core.errors import ConfigError
from tune_speed.ray import TimeToTargetScheduler, TimeToTargetSearch

SPACE = {
    "optimizer": {"lr": tune.loguniform(1e-4, 10.0)},
    "epochs": tune.randint(1, 33),
    "precision": "fp32",
}
TARGET = 0.9


def accuracy_after(config: dict[str, Any], epoch: int) -> float:
    """One run in six of the best misses by luck: the seed says which."""
    noise = np.random.default_rng([config["seed"], 5]).normal()
    best = 0.93 * (1 - math.exp(-epoch / 2)) + 0.01
    return float(best - 0.05 * math.log10(config["optimizer"]["lr"] / 0.1) ** 2 + 0.01 * noise)


def searcher(**options: Any) -> TimeToTargetSearch:
    search = TimeToTargetSearch(TARGET, seed=0, seed_as="seed", **options)
    assert search.set_search_properties("accuracy", "max", SPACE)
    return search


def run(search: TimeToTargetSearch, trial_id: str) -> dict[str, Any]:
    scheduler, config = TimeToTargetScheduler(search), search.suggest(trial_id)
    result: dict[str, Any] = {}
    for epoch in range(config["epochs"]):
        result = {
            "accuracy": accuracy_after(config, epoch + 1),
            "train_s": epoch + 1.0,
            "training_iteration": epoch + 1,
            "time_total_s": 100.0,
        }
        if _stops(scheduler, trial_id, result):
            break
        search.on_trial_result(trial_id, result)
    search.on_trial_complete(trial_id, result)
    return dict(config)


def _stops(scheduler: TimeToTargetScheduler, trial_id: str, result: dict[str, Any]) -> bool:
    trial = SimpleNamespace(trial_id=trial_id)
    return scheduler.on_trial_result(None, trial, result) == TrialScheduler.STOP


def test_it_recommends_what_meets_the_target_again_and_says_what_that_is() -> None:
    search = searcher(num_trials=40)
    runs = [run(search, f"r{number}") for number in range(40)]
    best = search.recommended()
    assert best is not None
    config = search.config_of(best.trial_id)
    assert set(config) == {"optimizer", "epochs"}
    again = [
        accuracy_after({**config, "seed": seed}, config["epochs"]) for seed in range(1000, 1200)
    ]
    assert np.mean(np.array(again) >= TARGET) > 0.6
    assert config["epochs"] <= 12
    assert len({each["seed"] for each in runs}) == 40
    # Some were run again: with other seeds.
    assert len({(each["optimizer"]["lr"], each["epochs"]) for each in runs}) < 40


def test_the_scheduler_stops_what_is_past_the_time_to_beat() -> None:
    search = searcher()
    scheduler = TimeToTargetScheduler(search)
    search.suggest("r0"), search.suggest("r1")
    result = {"accuracy": 0.95, "train_s": 2.0, "training_iteration": 1, "time_total_s": 100.0}
    assert not _stops(scheduler, "r0", result)
    search.on_trial_complete("r0", result)
    late = {**result, "accuracy": 0.5}
    assert not _stops(scheduler, "r1", {**late, "train_s": 1.0})
    assert _stops(scheduler, "r1", {**late, "train_s": 50.0, "training_iteration": 2})
    assert "t0000, which is recommended" in str(search.stop_reason("r1"))


def test_what_was_saved_goes_on_as_it_would_have(tmp_path: Path) -> None:
    whole, first = searcher(), searcher()
    expected = [run(whole, f"r{number}") for number in range(16)]
    for number in range(8):
        run(first, f"r{number}")
    first.save(str(tmp_path / "state"))
    then = searcher()
    then.restore(str(tmp_path / "state"))
    assert [run(then, f"r{number}") for number in range(8, 16)] == expected[8:]


def test_a_trial_that_tune_begins_again_counts_once(tmp_path: Path) -> None:
    search = searcher()
    config = search.suggest("r0")
    result = {"accuracy": 0.5, "train_s": 1.0, "training_iteration": 1, "time_total_s": 1.0}
    search.on_trial_result("r0", result)
    search.on_trial_result("r0", {**result, "train_s": 2.0, "training_iteration": 2})
    search.save(str(tmp_path / "state"))
    then = searcher()
    then.restore(str(tmp_path / "state"))
    for _ in range(2):  # Twice: the scheduler and then the searcher.
        then.on_trial_result("r0", {**result, "accuracy": 0.6})
    (running,) = (trial for trial in then._ot_study.trials if not trial.state.is_finished())
    assert running.intermediate_values == {1: 0.6}
    then.on_trial_complete("r0", {**result, "accuracy": 0.95, "training_iteration": 2})
    best = then.recommended()
    assert best is not None
    assert then.config_of(best.trial_id) == {k: config[k] for k in ("optimizer", "epochs")}


def test_numbers_are_used_once_though_trials_end_in_another_order() -> None:
    search = searcher()
    seeds = [search.suggest(f"r{number}")["seed"] for number in range(4)]
    result = {"accuracy": 0.5, "train_s": 1.0, "training_iteration": 1, "time_total_s": 1.0}
    search.on_trial_complete("r0", result)
    assert [*seeds, search.suggest("r4")["seed"]] == [0, 1, 2, 3, 4]


def test_a_trial_that_failed_teaches_nothing() -> None:
    search = searcher()
    search.suggest("r0")
    search.on_trial_complete("r0", error=True)
    assert search.recommended() is None
    assert search.suggest("r1") is not None


def runs_of(space: dict[str, Any], *, num_trials: int, mode: Any) -> list[dict[str, Any]]:
    search = TimeToTargetSearch(TARGET, seed=0, num_trials=num_trials, mode=mode)
    search.set_search_properties("accuracy", "max", space)
    configs = []
    while len(configs) < num_trials and isinstance(
        config := search.suggest(f"r{len(configs)}"), dict
    ):
        for epoch in (1, 2, 3):
            seconds = {"train_s": 0.1 * epoch, "time_total_s": 1.0}
            result = {"accuracy": 0.32 * epoch, "training_iteration": epoch, **seconds}
            search.on_trial_result(f"r{len(configs)}", result)
        search.on_trial_complete(f"r{len(configs)}", result)
        configs.append(config)
    best = search.recommended()
    assert best is not None and best.runs == configs.count(search.config_of(best.trial_id))
    return configs


@pytest.mark.parametrize("mode", ["fixed_length", "anytime"])
@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_a_tiny_space_is_run_until_the_recommended_one_has_four_runs(size: int, mode: Any) -> None:
    space = {"lr": tune.choice([0.1 * k for k in range(size)])} if size else {"fixed": 1}
    configs = runs_of(space, num_trials=20, mode=mode)
    assert max(map(configs.count, configs)) == 4
    assert 4 <= len(configs) <= max(4 * size, 4)
    assert len(runs_of(space, num_trials=2, mode=mode)) == 2


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")
def test_choices_may_be_lists_tuples_mappings_and_no_number() -> None:
    choices = [[64], (64, 64), {"a": [1]}, float("nan"), True, 1, "1"]
    found = runs_of({"n": {"k": tune.choice(choices)}}, num_trials=16, mode="fixed_length")
    seen = {repr(each["n"]["k"]) for each in found}
    assert len(found) == 7 + 3 and seen == set(map(repr, choices))


def test_a_space_of_one_point_ends_when_it_was_tried() -> None:
    search = TimeToTargetSearch(TARGET, repeats=False)
    search.set_search_properties("accuracy", "max", {"lr": tune.choice([0.1])})
    assert search.suggest("r0") == {"lr": 0.1}
    assert search.suggest("r1") is None
    result = {"accuracy": 0.95, "training_iteration": 1, "time_total_s": 1.0}
    search.on_trial_complete("r0", result)
    assert search.suggest("r1") == Searcher.FINISHED


def test_what_the_tuner_must_say_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="needs the metric and its mode"):
        TimeToTargetSearch(TARGET).set_search_properties(None, None, SPACE)
    with pytest.raises(ConfigError, match="needs a search space"):
        TimeToTargetSearch(TARGET).suggest("r0")
    with pytest.raises(ConfigError, match="mode must be max for accuracy"):
        TimeToTargetSearch(TARGET).set_search_properties("accuracy", "min", SPACE)


PROGRAM = """
import sys, time
from pathlib import Path
from ray import tune
from tune_speed.ray import TimeToTargetScheduler, TimeToTargetSearch

def trainable(config):
    Path(config["folder"], "begun").open("a").write("x")
    for epoch in range(config["epochs"]):
        time.sleep(0.1)
        lucky = 1e-4 * config["seed"]
        tune.report({"accuracy": 1 - 0.5 ** (epoch + 1) + lucky, "train_s": epoch + 1.0})

folder = Path(sys.argv[1])
if tune.Tuner.can_restore(str(folder / "tuned")):
    tuner = tune.Tuner.restore(str(folder / "tuned"), trainable, resume_unfinished=True)
else:
    search = TimeToTargetSearch(0.95, num_trials=14, seed_as="seed", seed=0)
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={"epochs": tune.randint(1, 13), "lr": tune.loguniform(0.01, 1.0),
            "folder": str(folder)},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", search_alg=search,
            scheduler=TimeToTargetScheduler(search), num_samples=14, max_concurrent_trials=2),
        run_config=tune.RunConfig(name="tuned", storage_path=str(folder), verbose=0),
    )
results = tuner.fit()
print("ENDED", len(results), len({result.config["seed"] for result in results}))
"""


@pytest.mark.slow
def test_a_tuner_that_was_killed_is_restored_with_what_was_learned(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = [sys.executable, str(program), str(tmp_path)]
    # Local: or it would join a cluster that another test has begun on this machine.
    environment = {**os.environ, "TUNE_GLOBAL_CHECKPOINT_S": "1", "RAY_ADDRESS": "local"}
    options: dict[str, Any] = {"env": environment, "text": True}
    begun = tmp_path / "begun"
    with subprocess.Popen(words, start_new_session=True, **options) as process:
        try:
            deadline_s = time.monotonic() + 120
            while not begun.exists() or begun.stat().st_size < 6:
                assert time.monotonic() < deadline_s and process.poll() is None
                time.sleep(0.2)
            time.sleep(2)  # Tune writes its state every second.
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    done = subprocess.run(words, capture_output=True, timeout=200, check=False, **options)
    # Had it begun anew, trials would have the numbers, hence the seeds, of those before.
    ended = re.search(r"ENDED (\d+) (\d+)", done.stdout)
    assert ended is not None, done.stdout + done.stderr
    assert ended[1] == ended[2] and int(ended[1]) >= begun.stat().st_size - 2 >= 4
