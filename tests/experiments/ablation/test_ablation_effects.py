import math
import statistics
from collections.abc import Mapping

import numpy as np
import pytest
from helpers.experiments.planted import (
    ACCURACY,
    ARMS,
    AXES,
    CONTRASTS,
    LN_SPEED,
    NOTHING,
    Planted,
    Values,
    truth,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom, ttest_1samp

from tune_speed.experiments.ablation.design import Design, arms_of, read_axes
from tune_speed.experiments.ablation.effects import (
    Contrast,
    Estimate,
    contrasts_of,
    estimate,
    with_holm,
)

GAIN = {"x": 1.0, "base": -1.0}
NUM_STUDIES = 750
NUMBERS = st.floats(-100, 100)
A, B, C = (axis.levels[0].label for axis in AXES)


def band(chance: float, *, num: int = NUM_STUDIES) -> tuple[float, float]:
    """Returns the shares between which 99.9 % of binomial shares lie."""
    low, high = binom.interval(0.999, num, chance)
    return low / num, high / num


def values_of(gains: list[float]) -> Values:
    return {"base": dict.fromkeys(range(len(gains)), 0.0), "x": dict(enumerate(gains))}


def covers(found: Estimate, value: float) -> bool:
    assert found.low is not None and found.high is not None
    return found.low <= value <= found.high


def outside(counts: Mapping[str, int], chance: float) -> dict[str, int]:
    """Returns the counts, of so many studies, that the chance does not explain."""
    low, high = band(chance)
    return {key: each for key, each in counts.items() if not low <= each / NUM_STUDIES <= high}


@given(st.lists(NUMBERS, min_size=2, max_size=12), st.floats(0.5, 0.99))
def test_interval_and_p_value_are_those_of_scipys_t_test(
    gains: list[float], confidence: float
) -> None:
    assume(statistics.stdev(gains) > 1e-3)
    found = estimate(GAIN, values_of(gains), confidence=confidence)
    test = ttest_1samp(gains, 0.0)
    ends = test.confidence_interval(confidence)
    assert found.value == pytest.approx(np.mean(gains), abs=1e-9)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high), rel=1e-9, abs=1e-9)
    assert found.p_value == pytest.approx(test.pvalue, rel=1e-6)
    assert found.n == len(gains)


def test_one_arm_beside_the_base_is_least_squares_with_an_effect_a_seed() -> None:
    """Ordinary least squares of y on seed and arm, and its textbook standard error."""
    y = np.array([[1.0, 1.4], [2.0, 2.9], [0.5, 0.6], [1.5, 2.3]])
    columns = [np.repeat(np.eye(4), 2, axis=0), np.tile([0.0, 1.0], 4)[:, None]]
    x = np.concatenate(columns, axis=1)
    beta, residuals, *_ = np.linalg.lstsq(x, y.ravel(), rcond=None)
    error = math.sqrt(residuals[0] / 3 * np.linalg.inv(x.T @ x)[-1, -1])
    found = estimate(GAIN, {"base": dict(enumerate(y[:, 0])), "x": dict(enumerate(y[:, 1]))})
    assert found.value == pytest.approx(beta[-1]) and found.low is not None
    # Student's t with 3 degrees of freedom at 97.5 %.
    assert found.value - found.low == pytest.approx(3.182446 * error, rel=1e-6)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=8), NUMBERS)
def test_what_a_block_does_to_all_arms_drops_out(
    pairs: list[tuple[float, float]], drift: float
) -> None:
    values = {"base": {i: a for i, (a, _) in enumerate(pairs)},
              "x": {i: b for i, (_, b) in enumerate(pairs)}}  # fmt: skip
    drifted = {arm: {i: y + i * drift for i, y in runs.items()} for arm, runs in values.items()}
    before, after = estimate(GAIN, values), estimate(GAIN, drifted)
    assert after.value == pytest.approx(before.value, abs=1e-9)


def test_only_blocks_with_every_finite_arm_count_and_one_has_no_interval() -> None:
    values = {
        "base": {0: 1.0, 1: 2.0, 2: 3.0, 3: math.nan, 4: 9.0},
        "x": {0: 2.0, 2: 6.0, 3: 1.0, 4: -math.inf, 5: 9.0},
    }
    found = estimate(GAIN, values)
    assert (found.value, found.n) == (2.0, 2)
    none = Estimate(value=None, n=0)
    assert estimate(GAIN, {}) == estimate(GAIN, {"x": {0: 1.0}, "base": {1: 0.0}}) == none
    assert estimate(GAIN, values_of([0.5])) == Estimate(value=0.5, n=1)


def test_blocks_that_all_agree_claim_no_interval() -> None:
    gained = estimate(GAIN, values_of([0.1 + 0.2, 0.3, 0.3, 0.3, 0.3]))
    assert gained.value == pytest.approx(0.3)
    assert (gained.low, gained.high, gained.p_value) == (None, None, 2**-4)
    same = estimate(GAIN, values_of([0.0, 0.0, 0.0]))
    assert (same.value, same.low, same.p_value) == (0.0, None, 1.0)


def test_holm_is_over_those_that_have_a_p_value() -> None:
    found = [Estimate(value=0.0, p_value=p, n=2) for p in (0.04, None, 0.01, 0.03)]
    adjusted = with_holm(found)
    assert [each.p_holm for each in adjusted] == pytest.approx([0.06, None, 0.03, 0.06])
    assert [each.p_value for each in adjusted] == [0.04, None, 0.01, 0.03]


def named(contrasts: tuple[Contrast, ...], kind: str) -> dict[str, Mapping[str, float]]:
    return {each.name: each.weights for each in contrasts if each.kind == kind}


def test_a_factorials_effects_are_those_of_least_squares() -> None:
    values = next(LN_SPEED.studies(1, seeds=1, stream=5))
    y = np.array([values[arm.name][0] for arm in ARMS])
    x = np.array([arm.levels for arm in ARMS], dtype=float)

    def coefficients(x: np.ndarray) -> np.ndarray:
        a, b, c = x.T
        columns = [np.ones(8), a, b, c, a * b, a * c, b * c, a * b * c]
        return np.linalg.lstsq(np.stack(columns, axis=1), y, rcond=None)[0]

    mains = [estimate(each.weights, values).value for each in CONTRASTS if each.kind == "main"]
    assert mains == pytest.approx(list(2 * coefficients(2 * x - 1)[1:4]))
    pairs = named(CONTRASTS, "interaction")
    assert list(pairs) == [f"{A} × {B}", f"{A} × {C}", f"{B} × {C}", f"{A} × {B} × {C}"]
    found = [estimate(weights, values).value for weights in pairs.values()]
    *twos, three = coefficients(x)[4:]
    assert found == pytest.approx([*twos, sum(twos) + three])


@pytest.mark.parametrize(
    ("design", "steps"),
    [
        ("one-at-a-time", {A: (A, "base"), B: (B, "base"), C: (C, "base")}),
        ("stacking", {A: (A, "base"), B: (B, "base"), C: (C, "base")}),
        ("cumulative",
         {A: (A, "base"), B: (f"{A} + {B}", A), C: (f"{A} + {B} + {C}", f"{A} + {B}")}),
        ("leave-one-out",
         {A: (f"{A} + {B} + {C}", f"{B} + {C}"), B: (f"{A} + {B} + {C}", f"{A} + {C}"),
          C: (f"{A} + {B} + {C}", f"{A} + {B}")}),
    ],
)  # fmt: skip
def test_what_a_level_does_is_told_by_the_arms_that_differ_by_it_alone(
    design: Design, steps: Mapping[str, tuple[str, str]]
) -> None:
    contrasts = contrasts_of(AXES, arms_of(AXES, design))
    expected = {level: {with_: 1.0, without: -1.0} for level, (with_, without) in steps.items()}
    assert named(contrasts, "main") == expected
    assert len(named(contrasts, "interaction")) == (design == "stacking")


def test_an_interaction_of_ln_speeds_is_the_speed_up_over_the_product_of_the_parts() -> None:
    epoch_s = {"base": 12.0, A: 8.0, B: 6.0, C: 10.0, f"{A} + {B} + {C}": 3.0}
    contrasts = contrasts_of(AXES, arms_of(AXES, "stacking"))
    (weights,) = named(contrasts, "interaction").values()
    found = estimate(weights, {arm: {0: -math.log(time_s)} for arm, time_s in epoch_s.items()})
    assert found.value is not None
    assert math.exp(found.value) == pytest.approx((12 / 3) / (12 / 8 * 12 / 6 * 12 / 10))


def test_a_step_that_replaces_an_earlier_one_is_compared_with_it() -> None:
    axes = read_axes({"one": {"drops": {"lr_schedule": "step"}}, "lr_schedule": "one_cycle"})
    mains = named(contrasts_of(axes, arms_of(axes, "cumulative")), "main")
    both = "drops + lr_schedule=one_cycle"
    assert mains["lr_schedule=one_cycle"] == {both: 1.0, "drops": -1.0}


def test_with_several_levels_each_has_its_main_effect_against_the_base() -> None:
    axes = read_axes({"batch_size": [32, 64], "precision": "bf16"})
    contrasts = contrasts_of(axes, arms_of(axes, "factorial"))
    assert list(named(contrasts, "main")) == ["batch_size=32", "batch_size=64", "precision=bf16"]
    weights = named(contrasts, "main")["precision=bf16"]
    assert sorted(weights.values()) == pytest.approx([-1 / 3] * 3 + [1 / 3] * 3)
    assert all(abs(sum(each.weights.values())) < 1e-12 for each in contrasts)


@pytest.mark.parametrize(
    ("planted", "stream"), [(LN_SPEED, 0), (ACCURACY, 6)], ids=["ln_speed", "accuracy"]
)
def test_95_percent_intervals_cover_what_was_planted_in_95_percent_of_studies(
    planted: Planted, stream: int
) -> None:
    covered = dict.fromkeys((each.name for each in CONTRASTS), 0)
    narrower = 0
    for values in planted.studies(NUM_STUDIES, stream=stream):
        for each in CONTRASTS:
            covered[each.name] += covers(estimate(each.weights, values), truth(each, planted))
        first = CONTRASTS[0]
        found = estimate(first.weights, values, confidence=0.9)
        narrower += covers(found, truth(first, planted))
    assert outside(covered, 0.95) == {}
    # That many studies would tell 90 % from 95 %.
    assert outside({"narrower": narrower}, 0.95)


@pytest.mark.parametrize(
    ("design", "truths"),
    # bf16 gains 0.45, accumulation 0.02, both together 0.12 less; pinned memory always gains 0.10.
    [
        ("leave-one-out", {A: 0.02 - 0.12, B: 0.45 - 0.12, C: 0.10}),
        ("cumulative", {A: 0.02, B: 0.45 - 0.12, C: 0.10}),
    ],
)
def test_95_percent_intervals_cover_what_was_planted_on_top_of_others(
    design: Design, truths: Mapping[str, float]
) -> None:
    added = named(contrasts_of(AXES, arms_of(AXES, design)), "main")
    covered = dict.fromkeys(truths, 0)
    for values in LN_SPEED.studies(NUM_STUDIES, stream=7):
        for name, weights in added.items():
            covered[name] += covers(estimate(weights, values), truths[name])
    assert outside(covered, 0.95) == {}


def test_holm_lets_nothing_false_through_and_a_large_effect_yes() -> None:
    """False alarms in 5 % of studies at most, where nothing is planted and where one thing is."""
    for planted, stream in ((NOTHING, 1), (NOTHING._replace(effects=(0.0, 2.0, 0.0)), 2)):
        nulls = [truth(contrast, planted) == 0 for contrast in CONTRASTS]
        alarms = uncorrected = powers = 0
        for values in planted.studies(NUM_STUDIES, stream=stream):
            found = with_holm([estimate(contrast.weights, values) for contrast in CONTRASTS])
            hits = [(each.p_holm or 0.0) <= 0.05 for each in found]
            alarms += any(hit for hit, is_null in zip(hits, nulls, strict=True) if is_null)
            uncorrected += any((each.p_value or 0.0) <= 0.05 for each in found)
            powers += hits[1]
        assert alarms / NUM_STUDIES <= band(0.05)[1]
        # Uncorrected, some contrast of the seven would look real far more often.
        assert uncorrected / NUM_STUDIES > 0.15
    assert powers / NUM_STUDIES > 0.9


def test_an_interaction_that_is_not_there_is_found_in_5_percent_of_studies() -> None:
    planted = LN_SPEED._replace(pair=0.0)
    found = dict.fromkeys(named(CONTRASTS, "interaction"), 0)
    for values in planted.studies(NUM_STUDIES, stream=3):
        for name, weights in named(CONTRASTS, "interaction").items():
            p_value = estimate(weights, values).p_value
            found[name] += p_value is not None and p_value <= 0.05
    assert outside(found, 0.05) == {}


def without_slow_runs(values: Values, random: np.random.Generator) -> Values:
    """Leaves out runs of the first axis's arms, the slower the seed, the more of them."""
    is_slow = {seed: y < LN_SPEED.base for seed, y in values["base"].items()}
    return {
        arm.name: {
            seed: y
            for seed, y in values[arm.name].items()
            if not arm.levels[0] or random.random() > (0.25 if is_slow[seed] else 0.02)
        }
        for arm in ARMS
    }


def test_missing_runs_leave_the_effects_of_the_others_unbiased() -> None:
    planted = LN_SPEED._replace(noise=(0.0, 0.08))  # the base shows the drift and nothing else
    random = np.random.default_rng(4)
    mains = named(CONTRASTS, "main")
    errors: dict[str, list[float]] = {name: [] for name in mains}
    truths = {each.name: truth(each, LN_SPEED) for each in CONTRASTS}
    naive: list[float] = []
    for values in planted.studies(NUM_STUDIES, seeds=8, stream=4):
        left = without_slow_runs(values, random)
        for name, weights in mains.items():
            found = estimate(weights, left)
            if found.value is not None:
                errors[name].append(found.value - truths[name])
        means = {arm: statistics.fmean(runs.values()) for arm, runs in left.items()}
        naive.append(sum(w * means[arm] for arm, w in mains[A].items()) - truths[A])
    assert min(len(each) for each in errors.values()) > 0.95 * NUM_STUDIES
    assert max(abs(standard_score(each)) for each in errors.values()) < 4
    assert standard_score(naive) > 10


def standard_score(errors: list[float]) -> float:
    return statistics.fmean(errors) / (statistics.stdev(errors) / math.sqrt(len(errors)))
