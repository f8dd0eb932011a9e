import math
import pickle
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from tune_speed.core.errors import ConfigError
from tune_speed.optuna import Recommendation, TimeToTargetPruner, TimeToTargetSampler, timed
from tune_speed.tuning.optuna.observed_study import LearnedCost, space_of

TARGET = 0.9


def accuracy_of(lr: float, epochs: int, *, seed: int) -> float:
    """Longer is better, a rate of 0.1 is best; one run in six of the best misses by luck."""
    rng = np.random.default_rng([seed, 5])
    best = 0.93 * (1 - math.exp(-epochs / 2)) + 0.01
    return float(best - 0.05 * math.log10(lr / 0.1) ** 2 + 0.01 * rng.normal())


def objective(trial: optuna.Trial) -> float:
    lr = trial.suggest_float("lr", 1e-4, 10.0, log=True)
    epochs = trial.suggest_int("epochs", 1, 64, log=True)
    trial.set_user_attr("train_s", float(epochs))
    return accuracy_of(lr, epochs, seed=trial.number)


def study_with(sampler: optuna.samplers.BaseSampler, **options: Any) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", sampler=sampler, **options)


def recommended(study: optuna.Study) -> Recommendation:
    assert isinstance(study.sampler, TimeToTargetSampler)
    found = study.sampler.recommended(study)
    assert found is not None
    return found


def true_expected_s(params: dict[str, Any]) -> float:
    hits = [
        accuracy_of(params["lr"], params["epochs"], seed=seed) >= TARGET
        for seed in range(10_000, 10_400)
    ]
    return float(params["epochs"]) / max(float(np.mean(hits)), 1e-9)


def test_what_it_recommends_is_within_a_third_of_the_best_and_far_before_what_tpe_finds() -> None:
    grid = [
        true_expected_s({"lr": lr, "epochs": epochs})
        for epochs in range(5, 16)
        for lr in (0.05, 0.1, 0.2)
    ]
    study = study_with(TimeToTargetSampler(TARGET, num_trials=50, seed=1))
    study.optimize(objective, n_trials=50)
    found = recommended(study)
    assert found.params == study.trials[found.number].params
    assert true_expected_s(found.params) < 1.33 * min(grid)
    tpe = study_with(optuna.samplers.TPESampler(seed=1))
    tpe.optimize(objective, n_trials=50)
    assert true_expected_s(found.params) < true_expected_s(tpe.best_params) / 2


def test_a_promising_configuration_is_run_again_and_counted() -> None:
    study = study_with(TimeToTargetSampler(TARGET, num_trials=40, seed=0))
    study.optimize(objective, n_trials=40)
    found = recommended(study)
    same = [trial for trial in study.trials if trial.params == found.params]
    assert found.runs == len(same) > 1
    assert found.hits == sum(trial.value >= TARGET for trial in same if trial.value is not None)
    study = study_with(TimeToTargetSampler(TARGET, num_trials=40, seed=0, repeats=False))
    study.optimize(objective, n_trials=40)
    assert len({tuple(trial.params.items()) for trial in study.trials}) == 40


def test_a_study_that_is_loaded_again_goes_on_as_it_would_have(tmp_path: Path) -> None:
    whole = study_with(TimeToTargetSampler(TARGET, seed=3))
    whole.optimize(objective, n_trials=24)
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "journal")))
    for _ in range(3):
        sampler = TimeToTargetSampler(TARGET, seed=3)
        parted = study_with(sampler, study_name="s", storage=storage, load_if_exists=True)
        parted.optimize(objective, n_trials=8)
    assert [t.params for t in parted.trials] == [t.params for t in whole.trials]
    copy = pickle.loads(pickle.dumps(sampler))
    assert copy.recommended(parted) == sampler.recommended(parted)


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")
@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize(
    "choices",
    [
        ([64], [64, 64], [128, 64]),
        ((64,), (64, 64)),
        ({"a": 1}, {"a": (2,)}),
        (math.nan, 1.0, 2.0),
        (True, 1, "1"),
    ],
    ids=str,
)
def test_choices_are_known_by_position_also_as_a_journal_returns_them(
    choices: Any, is_stored: bool, tmp_path: Path
) -> None:
    def run(trial: optuna.Trial) -> float:
        chosen.append(repr(trial.suggest_categorical("k", choices)))
        if chosen[-1] == repr(choices[0]):
            trial.suggest_float("x", 0.0, 1.0)
        trial.set_user_attr("train_s", 1.0)
        trial.report(0.95, 1)
        trial.should_prune()
        return 0.95

    chosen: list[str] = []
    journal = JournalStorage(JournalFileBackend(str(tmp_path / "journal"))) if is_stored else None
    study = study_with(
        TimeToTargetSampler(TARGET, num_trials=12, seed=0),
        pruner=TimeToTargetPruner(),
        storage=journal,
    )
    study.optimize(run, n_trials=12)
    assert set(chosen) == set(map(repr, choices))
    found = recommended(study)
    assert found.runs > 1


def test_a_study_that_searches_nothing_recommends_what_it_ran() -> None:
    study = study_with(TimeToTargetSampler(TARGET, seed=0))
    study.optimize(lambda trial: 0.95 + 0.0 * trial.suggest_categorical("k", [1]), n_trials=4)
    found = recommended(study)
    assert (found.runs, found.hits, found.params) == (4, 4, {"k": 1})


def test_processes_over_one_storage_propose_different_trials_and_learn_of_each_other(
    tmp_path: Path,
) -> None:
    program = (
        "import optuna, sys\n"
        "from optuna.storages import JournalStorage\n"
        "from optuna.storages.journal import JournalFileBackend\n"
        "from test_optuna_sampler import TimeToTargetSampler, objective, TARGET\n"
        f"storage = JournalStorage(JournalFileBackend({str(tmp_path / 'journal')!r}))\n"
        "study = optuna.create_study(study_name='s', storage=storage, load_if_exists=True,\n"
        "                            sampler=TimeToTargetSampler(TARGET, repeats=False))\n"
        "study.optimize(objective, n_trials=15)\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parent)
        for _ in range(2)
    ]
    assert [process.wait(120) for process in both] == [0, 0]
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "journal")))
    study = optuna.load_study(study_name="s", storage=storage)
    assert len(study.trials) == 30
    first = [tuple(trial.params.values()) for trial in study.trials[:12]]
    # Two that ask at one moment may both choose the same corner of the space.
    assert len(set(first)) >= 11
    assert any((trial.value or 0) >= TARGET for trial in study.trials)


def test_a_branch_of_a_conditional_space_gets_its_own_parameters() -> None:
    def branched(trial: optuna.Trial) -> float:
        if trial.suggest_categorical("optimizer", ["sgd", "adam"]) == "sgd":
            lr, best = trial.suggest_float("sgd_lr", 1e-3, 10.0, log=True), 1.0
        else:
            lr, best = trial.suggest_float("adam_lr", 1e-5, 0.1, log=True), 1e-3
        epochs = trial.suggest_int("epochs", 1, 64, log=True)
        trial.set_user_attr("train_s", float(epochs))
        return accuracy_of(0.1 * lr / best, epochs, seed=trial.number)

    study = study_with(TimeToTargetSampler(TARGET, seed=0))
    study.optimize(branched, n_trials=25)
    space = {p.name: p for p in space_of(_union(study), study.trials)}
    assert space["sgd_lr"].condition == {"optimizer": "sgd"}
    assert space["adam_lr"].condition == {"optimizer": "adam"}
    assert space["epochs"].condition == {}
    found = recommended(study)
    assert ("sgd_lr" in found.params) == (found.params["optimizer"] == "sgd")


def _union(study: optuna.Study) -> dict[str, Any]:
    return {name: each for trial in study.trials for name, each in trial.distributions.items()}


def test_a_condition_on_a_condition_needs_both() -> None:
    choice = CategoricalDistribution((False, True))
    lr = FloatDistribution(0.0, 1.0)

    def trial(**params: Any) -> FrozenTrial:
        known = {"a": choice, "b": choice, "c": lr}
        return create_trial(
            params=params, distributions={name: known[name] for name in params}, value=1.0
        )

    trials = [trial(a=False), trial(a=True, b=False), trial(a=True, b=True, c=0.5)]
    space = space_of({"c": lr, "b": choice, "a": choice}, trials)
    assert [(p.name, p.condition) for p in space] == [
        ("a", {}),
        ("b", {"a": True}),
        ("c", {"a": True, "b": True}),
    ]


def test_enqueued_trials_run_as_they_are_and_are_learned_from() -> None:
    study = study_with(TimeToTargetSampler(TARGET, seed=0))
    study.enqueue_trial({"lr": 0.1, "epochs": 12})
    study.optimize(objective, n_trials=2)
    assert study.trials[0].params == {"lr": 0.1, "epochs": 12}
    found = recommended(study)
    assert found.params == {"lr": 0.1, "epochs": 12}


def test_what_breaks_a_constraint_is_proposed_less_and_less() -> None:
    def constrained(trial: optuna.Trial) -> float:
        width = trial.suggest_float("width", 0.0, 1.0)
        trial.set_constraint("memory", width - 0.5)
        value = objective(trial)
        return value if width <= 0.5 else 1.0

    study = study_with(TimeToTargetSampler(TARGET, seed=0))
    study.optimize(constrained, n_trials=40)
    late = np.array([trial.params["width"] for trial in study.trials[20:]])
    assert np.mean(late > 0.5) < 0.2
    found = recommended(study)
    assert found.params["width"] <= 0.5


def test_ask_and_tell_needs_no_optimize() -> None:
    study = study_with(TimeToTargetSampler(TARGET, seed=0))
    space = {"lr": FloatDistribution(1e-4, 10.0, log=True), "epochs": IntDistribution(1, 64)}
    for number in range(15):
        trial = study.ask(space)
        trial.set_user_attr("train_s", float(trial.params["epochs"]))
        study.tell(trial, accuracy_of(**trial.params, seed=number))
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 15


def test_a_trial_that_is_past_the_time_to_beat_is_pruned_with_its_reason() -> None:
    def reported(trial: optuna.Trial) -> float:
        epochs = trial.suggest_int("epochs", 1, 64)
        for epoch in range(epochs):
            clock = trial.user_attrs.get("train_s", [])
            trial.set_user_attr("train_s", [*clock, epoch + 1.0])
            trial.report(0.95 if epoch >= 4 else 0.5, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return 0.95 if epochs > 4 else 0.5

    study = study_with(TimeToTargetSampler(TARGET, seed=0), pruner=TimeToTargetPruner())
    study.enqueue_trial({"epochs": 6})
    study.enqueue_trial({"epochs": 60})
    study.optimize(reported, n_trials=2)
    first, second = study.trials
    assert first.state == TrialState.COMPLETE
    assert second.state == TrialState.PRUNED
    # One hit of one run says little: what a run takes with restarts is more than its 6 s.
    assert 6 < len(second.intermediate_values) < 60
    assert "t0000, which is recommended" in second.user_attrs["stop_reason"]


def test_a_pruner_without_its_sampler_says_what_it_needs() -> None:
    study = study_with(optuna.samplers.RandomSampler(), pruner=TimeToTargetPruner())
    trial = study.ask()
    trial.report(0.5, 0)
    with pytest.raises(ConfigError, match="must go with a TimeToTargetSampler"):
        trial.should_prune()


def test_the_clock_counts_what_is_timed_and_nothing_else() -> None:
    study = study_with(TimeToTargetSampler(TARGET))
    trial = study.ask()
    for _ in range(3):
        with timed(trial):
            time.sleep(0.02)
        time.sleep(0.05)
    readings = trial.user_attrs["train_s"]
    assert len(readings) == 3
    assert all(0.02 <= b - a < 0.05 for a, b in pairwise([0.0, *readings]))


@pytest.mark.parametrize(
    ("options", "must"),
    [
        ({"direction": "up"}, "direction must be maximize or minimize"),
        ({"mode": "free"}, "mode must be fixed_length or anytime"),
        ({"direction": "minimize"}, "mode must be max for accuracy"),
        ({"target": 1.5}, "more than 0 and at most 1 for accuracy"),
    ],
)
def test_what_cannot_be_met_is_refused(options: dict[str, Any], must: str) -> None:
    with pytest.raises(ConfigError, match=must):
        TimeToTargetSampler(**{"target": TARGET, **options})


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="num_trial"):
        TimeToTargetSampler(TARGET, num_trial=60)  # type: ignore[call-arg]


def test_a_run_takes_as_long_as_its_length_and_its_width_say() -> None:
    study = study_with(optuna.samplers.RandomSampler(seed=0))
    space = {
        "epochs": IntDistribution(1, 64, log=True),
        "width": CategoricalDistribution((64, 128)),
        "lr": FloatDistribution(0.0, 1.0),
    }
    parameters = space_of(space, [])
    cost = LearnedCost(parameters)
    for _ in range(20):
        params = study.ask(space).params
        assert cost(params) is None or len(cost._rows) >= 3
        cost.learn(params, 0.5 * params["epochs"] * (params["width"] / 64) ** 2)
    found = cost({"epochs": 20, "width": 128, "lr": 0.3})
    assert found is not None
    assert found.likely_s == pytest.approx(40.0, rel=0.05)
    assert 0.6 * 40.0 < found.train_s < 40.0
