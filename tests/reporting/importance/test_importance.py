import functools

import numpy as np
import pytest
from helpers.making import make_evaluation, make_record, make_run

from tune_speed.components.optim import OPTIMIZERS
from tune_speed.core.records import RunResult, Status, Timing, TrialRecord
from tune_speed.reporting.importance.importance import (
    LEARNING_ONLY,
    OPTIMIZERS_LEARNING_ONLY,
    Importance,
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
