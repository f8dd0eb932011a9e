import functools
import math
import warnings

import numpy as np
import optuna
import pytest
from helpers.making import make_evaluation, make_record, make_run

from tune_speed.components.optim import OPTIMIZERS
from tune_speed.core.records import RunResult, Status, Timing, TrialRecord
from tune_speed.reporting import importance as module
from tune_speed.reporting.importance import (
    LEARNING_ONLY,
    OPTIMIZERS_LEARNING_ONLY,
    Importance,
    ParamImportance,
    _answer,
    can_change_step_time,
    importance,
)
from tune_speed.training.recipe import Recipe


def _run(status: Status, *, steps: int, step_ms: float) -> RunResult:
    run = make_run(status, time_s=steps * step_ms / 1000)
    evaluation = make_evaluation(step=steps, train_s=run.clocks.train_s)
    changes = {"steps": steps, "step_time_ms": step_ms, "evaluations": (evaluation,)}
    return run.model_copy(update=changes)


def _records(n: int = 60, *, seed: int = 0) -> list[TrialRecord]:
    """Trials that reach the target by their rate, in steps by epochs, in a time by batch size."""
    rng = np.random.default_rng(seed)
    records = []
    for number in range(n):
        epochs, batch_size = float(rng.uniform(2, 8)), int(rng.choice([32, 64, 128]))
        params = {
            "optimizer.sgd.lr": float(10 ** rng.uniform(-3, 0)),
            "epochs": epochs,
            "batch_size": batch_size,
        }
        status = Status.REACHED if params["optimizer.sgd.lr"] > 0.03 else Status.MISSED
        run = _run(status, steps=round(100 * epochs), step_ms=batch_size / 10)
        records.append(make_record(f"t{number:04}", status, runs=(run,), params=params))
    return records


@functools.cache
def _answers() -> tuple[Importance, ...]:
    return importance(_records())


def test_each_question_has_the_setting_that_matters_for_it_in_front():
    reaching, steps, step_time = _answers()
    assert [answer.params[0].name for answer in (reaching, steps, step_time)] == [
        "optimizer.sgd.lr",
        "epochs",
        "batch_size",
    ]
    assert all(answer.params[0].value > 0.8 for answer in (reaching, steps, step_time))
    assert reaching.n == step_time.n == 60
    assert 0 < steps.n < 60


def test_shares_are_sorted_and_inside_their_bands():
    for answer in _answers():
        values = [param.value for param in answer.params]
        assert values == sorted(values, reverse=True)
        assert all(0 <= p.low <= p.value <= p.high <= 1 for p in answer.params)


def test_the_same_seed_gives_the_same_answers():
    records = _records(16)
    assert importance(records, seed=2) == importance(records, seed=2)


def test_step_time_asks_only_what_can_change_it():
    *_, step_time = _answers()
    assert [param.name for param in step_time.params] == ["batch_size"]
    assert can_change_step_time("optimizer")
    assert can_change_step_time("speedups.depth.stochastic_depth.survival")
    assert not can_change_step_time("optimizer.sgd.lr")
    assert not can_change_step_time("lr_schedule.one_cycle.pct_start")


def test_what_cannot_change_a_steps_time_is_what_the_throughput_key_leaves_out():
    # An effective batch size without the micro-batch becomes one, which the key holds.
    of_recipe = Recipe.untimed_fields | {"label_smoothing"}
    assert of_recipe - {"effective_batch_size"} == LEARNING_ONLY
    assert set(Recipe.model_fields) >= LEARNING_ONLY
    kinds = OPTIMIZERS.values()
    assert (
        set().union(*(kind.untimed_fields | kind.switch_fields for kind in kinds))
        == OPTIMIZERS_LEARNING_ONLY
    )
    assert can_change_step_time("optimizer.muon.newton_schulz_steps")


def test_stopped_and_starved_trials_count_as_not_met_but_failed_ones_do_not_count():
    ends = [Status.CAPPED, Status.OOM, Status.DIVERGED, Status.MISSED, Status.FAILED]
    records = [
        make_record(f"t{n:04}", ends[n % 5] if n % 2 else Status.REACHED, params={"lr": n / 40})
        for n in range(40)
    ]
    reaching, steps, _ = importance(records)
    assert reaching.n == 40 - sum(record.status is Status.FAILED for record in records)
    assert steps.n == sum(record.status is Status.REACHED for record in records)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([], "8 finished trials or more, and there are 0"),
        (_records(7), "8 finished trials or more, and there are 7"),
        ([make_record(f"t{n}", params={"lr": n}) for n in range(9)], "all 9 finished trials met"),
        (
            [make_record(f"t{n}", Status.MISSED, params={"lr": n}) for n in range(9)],
            "all 9 finished trials fell short",
        ),
        (
            [
                make_record(f"t{n}", [Status.MISSED, Status.REACHED][n % 2], params={"lr": 1})
                for n in range(9)
            ],
            "no setting that could matter was given two values",
        ),
    ],
)
def test_without_enough_to_go_by_the_answer_is_words(records, words):
    reaching, *_ = importance(records)
    assert words in (reaching.why_none or "")
    assert (reaching.params, reaching.explained) == ((), None)


def test_steps_need_five_trials_that_met_the_target():
    records = _records(30)
    reached = [record for record in records if record.status is Status.REACHED][:4]
    _, steps, _ = importance([*reached, *(r for r in records if r.status is Status.MISSED)])
    assert steps.why_none == "it takes 5 trials that met the target or more, and there are 4"


def test_chance_is_not_shown_as_importance():
    rng = np.random.default_rng(1)
    statuses = [Status.REACHED, Status.MISSED]
    records = [
        make_record(f"t{n}", statuses[rng.integers(2)], params={"lr": float(rng.random())})
        for n in range(12)
    ]
    reaching, *_ = importance(records)
    assert "do not predict it" in (reaching.why_none or "")


def test_times_that_neighbours_slowed_are_left_out_where_others_are():
    records = _records(30)
    slow = [r.runs[0].model_copy(update={"timing": Timing.SHARED}) for r in records[:10]]
    alone = [r.runs[0].model_copy(update={"timing": Timing.ISOLATED}) for r in records[10:]]
    runs = [(run,) for run in [*slow, *alone]]
    timed = [r.model_copy(update={"runs": run}) for r, run in zip(records, runs, strict=True)]
    assert importance(timed)[2].n == 20
    assert (
        importance(
            [r.model_copy(update={"runs": (s,)}) for r, s in zip(records, slow, strict=False)]
        )[2].n
        == 10
    )


def test_steps_in_an_anytime_run_end_where_the_target_was_met():
    records = []
    for n in range(40):
        evaluations = (
            make_evaluation(step=10 * (n + 1), train_s=1.0),
            make_evaluation(step=1000, train_s=5.0),
        )
        run = make_run(time_s=1.0).model_copy(update={"evaluations": evaluations, "steps": 1000})
        records.append(make_record(f"t{n:04}", runs=(run,), params={"lr": n / 10}))
    _, steps, _ = importance(records)
    assert steps.params[0].value > 0.95
    # Without its curve, a run's share of the training clock says the same of equal steps.
    bare = [
        r.runs[0].model_copy(update={"evaluations": (), "steps": 10 * (n + 1)})
        for n, r in enumerate(records)
    ]
    again = importance(
        [r.model_copy(update={"runs": (b,)}) for r, b in zip(records, bare, strict=True)]
    )
    assert again[1].params == steps.params


def test_groups_that_may_not_be_compared_are_not_mixed():
    with pytest.raises(AssertionError, match="several groups"):
        importance([make_record("t0"), make_record("t1", device="NVIDIA H200")])


def shares(rows, outcome, *, seed=0) -> dict[str, ParamImportance]:
    records = [make_record(f"t{n:04}", params=row) for n, row in enumerate(rows)]
    return {each.name: each for each in _answer("reaching", records, outcome, seed=seed).params}


def uniform(n: int, names: str, *, seed: int = 0) -> list[dict[str, float]]:
    rng = np.random.default_rng(seed)
    return [{name: float(rng.random()) for name in names} for _ in range(n)]


def test_additive_function_gives_the_shares_of_its_squared_slopes():
    rows = uniform(400, "abc")
    found = shares(rows, [3 * row["a"] + row["b"] for row in rows])
    assert found["a"].value == pytest.approx(0.9, abs=0.06)
    assert found["b"].value == pytest.approx(0.1, abs=0.04)
    assert found["c"].value < 0.005


def test_what_acts_in_combination_counts_for_each_of_it():
    rows = uniform(400, "ab")
    found = shares(rows, [math.copysign(1, r["a"] - 0.5) * (r["b"] > 0.5) for r in rows])
    assert found["a"].value == pytest.approx(1.0, abs=0.1)
    assert found["b"].value == pytest.approx(0.5, abs=0.1)


def test_band_of_a_useless_parameter_holds_small_values():
    rng = np.random.default_rng(3)
    rows = uniform(60, "ab")
    found = shares(rows, [row["a"] + 0.2 * rng.standard_normal() for row in rows])
    assert found["b"].value < 0.1 and found["b"].low < 0.05
    assert found["a"].low > found["b"].high


def test_presence_is_the_parents_effect_and_a_value_is_the_childs():
    rng = np.random.default_rng(0)
    names = [str(name) for name in rng.choice(["sgd", "adam"], 300)]
    rows = [{"opt": name, f"opt.{name}.lr": float(rng.random())} for name in names]
    found = shares(rows, [float(name == "sgd") for name in names])
    assert found["opt"].value > 0.9 and found["opt.sgd.lr"].value < 0.02
    # 2 lr for sgd and 1 for adam, 1 in the mean of both: all of the variance is lr's of sgd.
    outcome = [row["opt.sgd.lr"] * 2 if row["opt"] == "sgd" else 1.0 for row in rows]
    found = shares(rows, outcome)
    assert found["opt.sgd.lr"].value > 0.9
    assert found["opt.adam.lr"].value < 0.02 and found["opt"].value < 0.05


def test_order_is_that_of_optunas_functional_anova():
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))

    def objective(trial: optuna.Trial) -> float:
        lr = trial.suggest_float("lr", 1e-4, 1.0, log=True)
        depth = trial.suggest_int("depth", 1, 20)
        kind = trial.suggest_categorical("kind", ["p", "q"])
        trial.suggest_float("unused", 0.5, 1.0)
        return (math.log10(lr) + 2) ** 2 + 0.1 * depth + (1.5 if kind == "p" else 0.0)

    study.optimize(objective, n_trials=150)
    ours = shares([t.params for t in study.trials], [t.value for t in study.trials])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        theirs = optuna.importance.get_param_importances(study, evaluator=evaluator)
    assert list(ours) == list(theirs)
    total = sum(each.value for each in ours.values())
    assert all(ours[name].value / total == pytest.approx(theirs[name], abs=0.1) for name in ours)


def test_trees_of_very_many_trials_see_some_and_say_the_same(monkeypatch):
    monkeypatch.setattr(module, "MOST_TRIALS", 300)
    rows = uniform(3000, "abc")
    found = shares(rows, [3 * row["a"] + row["b"] for row in rows])
    assert found["a"].value == pytest.approx(0.9, abs=0.08)
    assert found["b"].value == pytest.approx(0.1, abs=0.04)
