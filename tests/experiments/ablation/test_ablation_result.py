import json
import math

import pytest
from helpers.experiments.ablations import ablated, make_run, planted
from scipy import stats

from tune_speed.core.records import RunResult, Status
from tune_speed.experiments.ablation.effects import Estimate
from tune_speed.experiments.ablation.result import AblationResult, ArmResult, TuningPoint

AXES = {"accumulation_steps": 2}
ARM = "accumulation_steps=2"
BASE_S, ARM_S = (10.0, 20.0, 40.0), (5.0, 10.0, 10.0)
THREE = {"accumulation_steps": 2, "precision": "bf16", "loader.pin_memory": True}
LN_SPEEDS = {"accumulation_steps=2": 0.1, "precision=bf16": 0.4, "loader.pin_memory=true": 0.0}
PINNED = "loader.pin_memory=true"


def runs_of(times_s: tuple[float, ...], accuracies: tuple[float, ...] = ()) -> list[RunResult]:
    scores = accuracies or (0.95,) * len(times_s)
    pairs = zip(times_s, scores, strict=True)
    return [make_run(seed=s, time_s=t, accuracy=a) for s, (t, a) in enumerate(pairs)]


def missed(seed: int, time_s: float, status: Status = Status.MISSED) -> RunResult:
    return make_run(seed=seed, time_s=time_s, accuracy=0.5, status=status)


def arm_of(result: AblationResult, name: str = ARM) -> ArmResult:
    arm = result.arm(name)
    assert arm is not None
    return arm


def interval_of(found: Estimate | None) -> tuple[float, float, float]:
    assert found is not None and found.value is not None
    assert found.low is not None and found.high is not None
    return (found.value, found.low, found.high)


def test_speed_up_is_the_geometric_mean_ratio_by_seed_with_scipys_interval() -> None:
    """Ratios 2, 2, 4: their geometric mean is 2^(4/3)."""
    arm = arm_of(ablated({"base": runs_of(BASE_S), ARM: runs_of(ARM_S)}, axes=AXES))
    logs = [math.log(b / a) for b, a in zip(BASE_S, ARM_S, strict=True)]
    test = stats.ttest_1samp(logs, 0.0)
    ends = test.confidence_interval(0.95)
    expected = (2 ** (4 / 3), math.exp(ends.low), math.exp(ends.high))
    assert interval_of(arm.speed_up) == pytest.approx(expected)
    assert arm.speed_up is not None and arm.speed_up.n == 3
    assert arm.speed_up.p_value == pytest.approx(test.pvalue)


def test_accuracy_gain_is_that_of_a_paired_t_test() -> None:
    base, own = (0.90, 0.92, 0.97), (0.93, 0.94, 0.975)
    runs = {"base": runs_of(BASE_S, base), ARM: runs_of(ARM_S, own)}
    arm = arm_of(ablated(runs, axes=AXES))
    test = stats.ttest_rel(own, base)
    ends = test.confidence_interval(0.95)
    assert interval_of(arm.accuracy_gain) == pytest.approx((0.055 / 3, ends.low, ends.high))
    # The records' macro F1 is half of the accuracy.
    assert interval_of(arm.macro_f1_gain) == pytest.approx(
        (0.0275 / 3, ends.low / 2, ends.high / 2)
    )


def test_accuracy_near_1_has_an_interval_below_1() -> None:
    figure = arm_of(
        ablated({"base": runs_of(BASE_S, (0.90, 1.0, 1.0))}, axes=AXES), "base"
    ).accuracy
    assert figure.low is not None and figure.high is not None
    assert figure.mean == pytest.approx(2.9 / 3)
    assert 0 < figure.low < 2.9 / 3 < figure.high < 1


def test_times_have_standard_deviation_and_students_interval_of_their_logarithm() -> None:
    base = arm_of(ablated({"base": runs_of(BASE_S)}, axes=AXES), "base")
    ends = stats.ttest_1samp(BASE_S, 0.0).confidence_interval(0.95)
    figure = base.epoch_s
    assert (figure.mean, figure.n) == (pytest.approx(70 / 3), 3)
    assert figure.sd == pytest.approx(math.sqrt(700 / 3))
    factor = math.exp((ends.high - 70 / 3) / (70 / 3))
    assert (figure.low, figure.high) == pytest.approx((70 / 3 / factor, 70 / 3 * factor))


def test_time_per_epoch_is_training_clock_over_passes_done() -> None:
    run = make_run(seed=0, time_s=12.0)
    halfway = run.evaluations[0].model_copy(update={"epoch": 2.5})
    run = run.model_copy(update={"evaluations": (halfway,)})
    assert arm_of(ablated({"base": [run]}, axes=AXES), "base").epoch_s.mean == 4.8


def test_only_seeds_that_both_have_are_compared() -> None:
    runs = {"base": runs_of(BASE_S), ARM: [make_run(seed=2, time_s=10.0)]}
    arm = arm_of(ablated(runs, axes=AXES))
    assert arm.speed_up is not None
    assert (arm.speed_up.value, arm.speed_up.n) == (pytest.approx(4.0), 1)
    assert arm.speed_up.low is None and arm.time_to_target_pairs == 1


@pytest.mark.parametrize("status", [Status.FAILED, Status.OOM, Status.DIVERGED])
def test_broken_run_is_a_miss_and_in_no_mean(status: Status) -> None:
    own = [*runs_of((5.0, 5.0)), missed(2, 1.0, status)]
    arm = arm_of(ablated({"base": runs_of(BASE_S), ARM: own}, axes=AXES))
    assert arm.statuses == {Status.REACHED: 2, status: 1}
    assert (arm.n, arm.hits, arm.success_rate) == (3, 2, pytest.approx(2 / 3))
    assert (arm.epoch_s.n, arm.accuracy.n, arm.peak_memory_gib.n) == (2, 2, 2)
    assert arm.accuracy.mean == pytest.approx(0.95)
    assert arm.speed_up is not None and arm.speed_up.n == 2
    assert arm.stop_reasons == (f"ended as {status.value}",)


def test_success_rates_interval_is_scipys() -> None:
    own = [*runs_of((5.0, 5.0)), missed(2, 1.0)]
    arm = arm_of(ablated({"base": runs_of(BASE_S), ARM: own}, axes=AXES))
    ends = stats.binomtest(2, 3).proportion_ci(0.95, method="wilson")
    assert (arm.success_low, arm.success_high) == pytest.approx((ends.low, ends.high))


def test_miss_is_infinite_in_the_median_and_costs_its_time_in_the_expected_one() -> None:
    """A hit of 6 s and two misses of 9 s: a hit costs 24 s."""
    own = [make_run(seed=0, time_s=6.0), missed(1, 9.0), missed(2, 9.0)]
    arm = arm_of(ablated({"base": runs_of(BASE_S), ARM: own}, axes=AXES))
    assert (arm.time_to_target_s.median, arm.time_to_target_s.n) == (None, 3)
    assert arm.expected_s == pytest.approx(24.0)
    assert arm.expected_low_s is not None and arm.expected_low_s < 24.0


def test_factor_of_times_to_target_is_the_geometric_mean_where_all_hit() -> None:
    runs = {"base": runs_of(BASE_S), ARM: runs_of(ARM_S)}
    arm = arm_of(ablated(runs, axes=AXES))
    logs = [math.log(b / a) for b, a in zip(BASE_S, ARM_S, strict=True)]
    ends = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    found = (arm.time_to_target_factor, arm.time_to_target_low, arm.time_to_target_high)
    assert found == pytest.approx((2 ** (4 / 3), math.exp(ends.low), math.exp(ends.high)))
    assert arm.time_to_target_p == pytest.approx(stats.ttest_1samp(logs, 0.0).pvalue)
    assert arm.time_to_target_pairs == 3 and "log time" in arm.time_to_target_method


def test_factor_of_a_slower_arm_is_the_inverse() -> None:
    fast = arm_of(ablated({"base": runs_of(BASE_S), ARM: runs_of(ARM_S)}, axes=AXES))
    slow = arm_of(ablated({"base": runs_of(ARM_S), ARM: runs_of(BASE_S)}, axes=AXES))
    factors = [fast.time_to_target_factor, fast.time_to_target_low, fast.time_to_target_high]
    assert all(factors)
    inverse = [slow.time_to_target_factor, slow.time_to_target_high, slow.time_to_target_low]
    assert inverse == pytest.approx([1 / factor for factor in factors if factor])
    assert slow.time_to_target_p == pytest.approx(fast.time_to_target_p)


NEVER = [missed(seed, 10.0) for seed in range(3)]


@pytest.mark.parametrize(
    ("base", "own", "factor", "pairs"),
    [
        (runs_of(BASE_S), NEVER, 0.0, 3),
        # Infinite.
        (NEVER, runs_of(ARM_S), None, 3),
        (NEVER, NEVER, None, 0),
        # As steps × isolated step time has, where an arm changes nothing that takes time.
        (runs_of(BASE_S), runs_of(BASE_S), 1.0, 3),
    ],
)
def test_factors_of_times_that_were_never_met_or_are_equal(
    base: list[RunResult], own: list[RunResult], factor: float | None, pairs: int
) -> None:
    arm = arm_of(ablated({"base": base, ARM: own}, axes=AXES))
    assert (arm.time_to_target_factor, arm.time_to_target_pairs) == (factor, pairs)
    assert (arm.expected_s is None) == (own is NEVER)


def test_p_values_of_a_response_are_corrected_by_holm_in_their_number() -> None:
    axes = {"accumulation_steps": [2, 4], "batch_size": 16}
    ln_speeds = {"accumulation_steps=2": 0.05, "accumulation_steps=4": 0.0, "batch_size=16": 0.3}
    runs = planted(axes, design="one-at-a-time", ln_speeds=ln_speeds)
    result = ablated(runs, axes=axes)
    found = [effect.estimate for effect in result.effects if effect.response == "speed"]
    raw = sorted(each.p_value or 0.0 for each in found)
    expected = [3 * raw[0], max(3 * raw[0], 2 * raw[1]), max(3 * raw[0], 2 * raw[1], raw[2])]
    held = sorted(each.p_holm or 0.0 for each in found)
    assert held == pytest.approx([min(1.0, p_value) for p_value in expected])
    times = [arm.time_to_target_p_holm for arm in result.arms]
    assert times[0] is None and None not in times[1:]


def test_leaving_one_out_tells_what_each_adds_last() -> None:
    """Without pinned memory passes of 3 s, 4 s and 8 s take 4 s, 5 s and 10 s."""
    everything = f"{ARM} + precision=bf16 + {PINNED}"
    times_s = {
        "base": (12.0, 15.0, 30.0),
        f"precision=bf16 + {PINNED}": (6.0, 6.0, 12.0),
        f"{ARM} + {PINNED}": (9.0, 9.0, 24.0),
        f"{ARM} + precision=bf16": (4.0, 5.0, 10.0),
        everything: (3.0, 4.0, 8.0),
    }
    scores = {everything: (0.93, 0.94, 0.95)}
    runs = {name: runs_of(times, scores.get(name, ())) for name, times in times_s.items()}
    result = ablated(runs, axes=THREE, design="leave-one-out")
    effect = result.effect("speed", "main", PINNED)
    assert effect is not None and effect.estimate.n == 3
    logs = [math.log(4 / 3), math.log(5 / 4), math.log(10 / 8)]
    test = stats.ttest_1samp(logs, 0.0)
    ends = test.confidence_interval(0.95)
    expected = ((25 / 12) ** (1 / 3), math.exp(ends.low), math.exp(ends.high))
    assert interval_of(effect.estimate) == pytest.approx(expected)
    accuracy = result.effect("accuracy", "main", PINNED)
    assert accuracy is not None and accuracy.estimate.value == pytest.approx(-0.01)
    # Holm's family is all three.
    p_values = sorted(
        (e.estimate.p_value or 0.0, e.estimate.p_holm or 0.0)
        for e in result.effects
        if e.response == "speed"
    )
    assert len(p_values) == 3 and p_values[0][1] == pytest.approx(3 * p_values[0][0])


def test_arm_that_is_not_applicable_is_neither_run_nor_compared() -> None:
    runs = planted(THREE, design="factorial", ln_speeds=LN_SPEEDS)
    own = {name: each for name, each in runs.items() if PINNED not in name}
    absent = {name: "no CUDA" for name in runs if PINNED in name}
    result = ablated(own, axes=THREE, design="factorial", seeds=5, not_applicable=absent)
    pinned = arm_of(result, PINNED)
    assert (pinned.not_applicable, pinned.n, pinned.speed_up) == ("no CUDA", 0, None)
    assert (pinned.success_rate, pinned.expected_s, pinned.accuracy.mean) == (None, None, None)
    assert result.planned_runs == result.done_runs == 20
    assert not any(PINNED in effect.name for effect in result.effects)
    mains = [e.name for e in result.effects if e.kind == "main" and e.response == "speed"]
    assert mains == ["accumulation_steps=2", "precision=bf16"]


def test_base_that_is_not_applicable_leaves_the_arms_figures() -> None:
    result = ablated({ARM: runs_of(ARM_S)}, axes=AXES, not_applicable={"base": "no CUDA"})
    assert result.effects == () and arm_of(result).epoch_s.n == 3
    assert result.device == "cpu (1 threads, test)"


def test_nothing_is_claimed_before_the_first_run() -> None:
    result = ablated({}, axes=AXES)
    assert (result.done_runs, result.planned_runs, result.effects) == (0, 6, ())
    assert (result.device, result.metric, result.target) == ("", "accuracy", 0.9)
    assert [arm.n for arm in result.arms] == [0, 0]


def test_memory_is_the_median_and_unconverged_runs_count_as_infinite() -> None:
    gib = (0.25, 4.0, 0.5)
    own = [
        run.model_copy(update={"peak_memory_gib": each})
        for run, each in zip(runs_of(BASE_S), gib, strict=True)
    ]
    base = arm_of(ablated({"base": own}, axes=AXES), "base")
    assert (base.peak_memory_gib.median, base.peak_memory_gib.high) == (0.5, 4.0)
    # One epoch says nothing on the five after it.
    assert (base.epochs_to_convergence.median, base.epochs_to_convergence.n) == (None, 3)


@pytest.mark.parametrize(("factor", "is_at_edge"), [(0.3, True), (1.0, False), (3.0, True)])
def test_rate_at_the_edge_of_what_was_tried_is_marked(factor: float, is_at_edge: bool) -> None:
    points = [TuningPoint(factor=f, metric=0.9, status=Status.REACHED) for f in (0.3, 1.0, 3.0)]
    result = ablated({}, axes=AXES, retune="lr", tuning={ARM: points}, lr_factors={ARM: factor})
    arm = arm_of(result)
    assert (arm.lr_factor, arm.is_lr_at_edge, len(arm.tuning)) == (factor, is_at_edge, 3)
    assert arm_of(result, "base").is_lr_at_edge is None


@pytest.mark.parametrize("num_seeds", [1, 2, 5])
def test_result_is_strict_json_and_comes_back_as_it_was(num_seeds: int) -> None:
    runs = planted(THREE, design="stacking", ln_speeds=LN_SPEEDS, seeds=num_seeds)
    runs[ARM] = [missed(seed, 10.0) for seed in range(num_seeds)]
    del runs[PINNED]
    result = ablated(runs, axes=THREE, design="stacking", not_applicable={PINNED: "no CUDA"})
    text = json.dumps(result.model_dump(mode="json"), allow_nan=False)
    assert AblationResult.model_validate_json(text) == result
