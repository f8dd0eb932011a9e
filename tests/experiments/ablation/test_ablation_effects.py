import itertools
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

from tune_speed.experiments.ablation.design import Arm, Design, arms_of, read_axes
from tune_speed.experiments.ablation.effects import (
    Contrast,
    Estimate,
    contrasts_of,
    estimate,
    with_holm,
)

GAIN = Contrast("alone", "x", {"x": 1.0, "base": -1.0})
NUM_STUDIES = 750
NUMBERS = st.floats(-100, 100)


def band(chance: float, *, num: int = NUM_STUDIES) -> tuple[float, float]:
    """Returns the shares between which 99.9 % of binomial shares lie."""
    low, high = binom.interval(0.999, num, chance)
    return low / num, high / num


def values_of(gains: list[float]) -> Values:
    return {"base": dict.fromkeys(range(len(gains)), 0.0), "x": dict(enumerate(gains))}


def covers(found: Estimate, value: float) -> bool:
    assert found.low is not None and found.high is not None
    return found.low <= value <= found.high


def is_found(found: Estimate) -> bool:
    return found.p_holm is not None and found.p_holm <= 0.05


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


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=8), NUMBERS)
def test_what_a_block_does_to_all_arms_drops_out(
    pairs: list[tuple[float, float]], drift: float
) -> None:
    values = {"base": {i: a for i, (a, _) in enumerate(pairs)},
              "x": {i: b for i, (_, b) in enumerate(pairs)}}  # fmt: skip
    drifted = {arm: {i: y + i * drift for i, y in runs.items()} for arm, runs in values.items()}
    before, after = estimate(GAIN, values), estimate(GAIN, drifted)
    assert after.value == pytest.approx(before.value, abs=1e-9)


def test_no_block_gives_no_value_and_one_gives_no_interval() -> None:
    none = Estimate(value=None, low=None, high=None, p_value=None, n=0)
    assert estimate(GAIN, {}) == none
    assert estimate(GAIN, {"x": {0: 1.0}, "base": {1: 0.0}}) == none
    one = Estimate(value=0.5, low=None, high=None, p_value=None, n=1)
    assert estimate(GAIN, values_of([0.5])) == one


def test_only_blocks_with_every_finite_arm_count() -> None:
    values = {
        "base": {0: 1.0, 1: 2.0, 2: 3.0, 3: math.nan, 4: 9.0},
        "x": {0: 2.0, 2: 6.0, 3: 1.0, 4: -math.inf, 5: 9.0},
        "other": {},
    }
    found = estimate(GAIN._replace(weights={**GAIN.weights, "other": 0.0}), values)
    assert (found.value, found.n) == (2.0, 2)


def test_blocks_that_all_agree_claim_no_interval() -> None:
    gained = estimate(GAIN, values_of([0.1 + 0.2, 0.3, 0.3, 0.3, 0.3]))
    assert gained.value == pytest.approx(0.3)
    assert (gained.low, gained.high, gained.p_value) == (None, None, 2**-4)
    same = estimate(GAIN, values_of([0.0, 0.0, 0.0]))
    assert (same.value, same.low, same.p_value) == (0.0, None, 1.0)


def test_holm_is_over_those_that_have_a_p_value() -> None:
    def found(p_value: float | None) -> Estimate:
        return Estimate(value=0.0, low=None, high=None, p_value=p_value, n=2)

    adjusted = with_holm([found(0.04), found(None), found(0.01), found(0.03)])
    assert [each.p_holm for each in adjusted] == pytest.approx([0.06, None, 0.03, 0.06])
    assert [each.p_value for each in adjusted] == [0.04, None, 0.01, 0.03]


def named(contrasts: tuple[Contrast, ...], kind: str) -> dict[str, Mapping[str, float]]:
    return {each.name: each.weights for each in contrasts if each.kind == kind}


def test_a_factorial_tells_every_kind_of_effect() -> None:
    kinds = [contrast.kind for contrast in CONTRASTS]
    assert kinds == ["alone"] * 3 + ["together"] * 4 + ["main"] * 3 + ["interaction"] * 4
    assert list(named(CONTRASTS, "interaction")) == [
        "accumulation_steps=2 × precision=bf16",
        "accumulation_steps=2 × loader.pin_memory=true",
        "precision=bf16 × loader.pin_memory=true",
        "accumulation_steps=2 × precision=bf16 × loader.pin_memory=true",
    ]


def test_a_factorials_effects_are_those_of_least_squares() -> None:
    values = next(LN_SPEED.studies(1, seeds=1, stream=5))
    y = np.array([values[arm.name][0] for arm in ARMS])
    x = np.array([arm.levels for arm in ARMS], dtype=float)

    def coefficients(x: np.ndarray) -> np.ndarray:
        a, b, c = x.T
        columns = [np.ones(8), a, b, c, a * b, a * c, b * c, a * b * c]
        return np.linalg.lstsq(np.stack(columns, axis=1), y, rcond=None)[0]

    mains = [estimate(each, values).value for each in CONTRASTS if each.kind == "main"]
    assert mains == pytest.approx(list(2 * coefficients(2 * x - 1)[1:4]))
    together = [estimate(each, values).value for each in CONTRASTS if each.kind == "interaction"]
    *pairs, triple = coefficients(x)[4:]
    assert together == pytest.approx([*pairs, sum(pairs) + triple])


def test_an_interaction_of_ln_speeds_is_the_speed_up_over_the_product_of_the_parts() -> None:
    epoch_s = {"base": 12.0, "a": 8.0, "b": 6.0, "c": 10.0, "a + b + c": 3.0}
    axes = read_axes(
        {"1": {"a": {"epochs": 1}}, "2": {"b": {"devices": 2}}, "3": {"c": {"compile": True}}}
    )
    (synergy,) = named(contrasts_of(axes, arms_of(axes, "stacking")), "interaction").items()
    values = {arm: {0: -math.log(time_s)} for arm, time_s in epoch_s.items()}
    found = estimate(Contrast("interaction", *synergy), values).value
    assert found is not None
    assert math.exp(found) == pytest.approx((12 / 3) / (12 / 8 * 12 / 6 * 12 / 10))


def test_designs_without_the_arms_tell_no_main_effects_and_no_interactions() -> None:
    for design, together in (("one-at-a-time", 0), ("leave-one-out", 4), ("cumulative", 2)):
        contrasts = contrasts_of(AXES, arms_of(AXES, design))
        assert {each.kind for each in contrasts} <= {"alone", "together", "added"}
        assert len(named(contrasts, "together")) == together


A, B, C = (axis.levels[0].label for axis in AXES)
ADDED: Mapping[Design, Mapping[str, Mapping[str, float]]] = {
    "leave-one-out": {
        A: {f"{A} + {B} + {C}": 1.0, f"{B} + {C}": -1.0},
        B: {f"{A} + {B} + {C}": 1.0, f"{A} + {C}": -1.0},
        C: {f"{A} + {B} + {C}": 1.0, f"{A} + {B}": -1.0},
    },
    "cumulative": {
        B: {f"{A} + {B}": 1.0, A: -1.0},
        C: {f"{A} + {B} + {C}": 1.0, f"{A} + {B}": -1.0},
    },
    "one-at-a-time": {},
    "stacking": {},
    "factorial": {},
}


@pytest.mark.parametrize("design", ADDED)
def test_a_level_that_no_arm_has_alone_is_told_by_what_it_adds(design: Design) -> None:
    assert named(contrasts_of(AXES, arms_of(AXES, design)), "added") == ADDED[design]


def test_a_step_that_replaces_an_earlier_one_is_compared_with_it() -> None:
    axes = read_axes({"one": {"drops": {"lr_schedule": "step"}}, "lr_schedule": "one_cycle"})
    contrasts = contrasts_of(axes, arms_of(axes, "cumulative"))
    both = "drops + lr_schedule=one_cycle"
    assert named(contrasts, "added") == {"lr_schedule=one_cycle": {both: 1.0, "drops": -1.0}}


def test_two_axes_left_out_in_turn_are_a_factorial() -> None:
    axes = AXES[:2]
    found, full = (contrasts_of(axes, arms_of(axes, d)) for d in ("leave-one-out", "factorial"))
    assert {(kind, name): weights for kind, name, weights in found} == {
        (kind, name): weights for kind, name, weights in full
    }


@given(st.sets(st.sampled_from(ARMS[1:])))
def test_each_step_between_arms_is_told_once_where_the_level_is_not_alone(
    chosen: set[Arm],
) -> None:
    """Against pairs of the names' labels, from any part of a factorial."""
    arms = [ARMS[0], *(arm for arm in ARMS if arm in chosen)]
    contrasts = contrasts_of(AXES, arms)
    labels = {arm.name: frozenset(arm.name.split(" + ")) for arm in arms[1:]}
    pairs = {
        (more, less)
        for more, less in itertools.permutations(labels, 2)
        if labels[less] < labels[more] and len(labels[more] - labels[less]) == 1
        if labels[more] - labels[less] not in labels.values()
    }
    added = [each for each in contrasts if each.kind == "added"]
    told = {tuple(sorted(each.weights, key=lambda arm: -each.weights[arm])) for each in added}
    assert told == pairs and len(added) == len(pairs)
    assert len({(each.kind, each.name) for each in contrasts}) == len(contrasts)


def test_speed_ups_added_step_by_step_multiply_to_that_of_all() -> None:
    """12 s, 8 s, 6 s, 4.5 s: 1.5 × 8/6 × 6/4.5 = 12/4.5."""
    seconds = dict(zip(("base", A, f"{A} + {B}", f"{A} + {B} + {C}"), (12, 8, 6, 4.5), strict=True))
    values = {arm: {0: -math.log(time_s)} for arm, time_s in seconds.items()}
    contrasts = contrasts_of(AXES, arms_of(AXES, "cumulative"))
    steps = [estimate(each, values).value or 0.0 for each in contrasts if each.kind == "added"]
    assert [math.exp(step) for step in steps] == pytest.approx([4 / 3, 4 / 3])
    assert 1.5 * math.exp(sum(steps)) == pytest.approx(12 / 4.5)


def test_an_axis_that_cannot_be_run_here_leaves_the_others_effects() -> None:
    contrasts = contrasts_of(AXES, [arm for arm in ARMS if not arm.levels[2]])
    both = "accumulation_steps=2 + precision=bf16"
    assert named(contrasts, "main") == {
        "accumulation_steps=2": {
            "accumulation_steps=2": 0.5, "base": -0.5, both: 0.5, "precision=bf16": -0.5,
        },
        "precision=bf16": {
            "precision=bf16": 0.5, "base": -0.5, both: 0.5, "accumulation_steps=2": -0.5,
        },
    }  # fmt: skip


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
    contrasts = {f"{each.kind} {each.name}": each for each in CONTRASTS}
    covered = dict.fromkeys(contrasts, 0)
    narrower = 0
    for values in planted.studies(NUM_STUDIES, stream=stream):
        for key, contrast in contrasts.items():
            covered[key] += covers(estimate(contrast, values), truth(contrast, planted))
        first = CONTRASTS[0]
        narrower += covers(estimate(first, values, confidence=0.9), truth(first, planted))
    low, high = band(0.95)
    shares = {key: count / NUM_STUDIES for key, count in covered.items()}
    assert {key: share for key, share in shares.items() if not low <= share <= high} == {}
    # That many studies would tell 90 % from 95 %.
    assert narrower / NUM_STUDIES < low


@pytest.mark.parametrize(
    ("design", "truths"),
    # bf16 gains 0.45, accumulation 0.02, both together 0.12 less; pinned memory always gains 0.10.
    [
        ("leave-one-out", {A: 0.02 - 0.12, B: 0.45 - 0.12, C: 0.10}),
        ("cumulative", {B: 0.45 - 0.12, C: 0.10}),
    ],
)
def test_95_percent_intervals_cover_what_was_planted_on_top_of_others(
    design: Design, truths: Mapping[str, float]
) -> None:
    contrasts = contrasts_of(AXES, arms_of(AXES, design))
    added = [each for each in contrasts if each.kind == "added"]
    covered = dict.fromkeys(truths, 0)
    for values in LN_SPEED.studies(NUM_STUDIES, stream=7):
        for contrast in added:
            covered[contrast.name] += covers(estimate(contrast, values), truths[contrast.name])
    low, high = band(0.95)
    shares = {name: count / NUM_STUDIES for name, count in covered.items()}
    assert {name: share for name, share in shares.items() if not low <= share <= high} == {}


def test_where_nothing_is_planted_holm_finds_something_in_5_percent_of_studies_at_most() -> None:
    false_alarms = 0
    alone = 0
    for values in NOTHING.studies(NUM_STUDIES, stream=1):
        found = with_holm([estimate(contrast, values) for contrast in CONTRASTS])
        false_alarms += any(map(is_found, found))
        alone += any(each.p_value is not None and each.p_value <= 0.05 for each in found)
    assert false_alarms / NUM_STUDIES <= band(0.05)[1]
    # Uncorrected, some contrast of the fourteen would look real far more often.
    assert alone / NUM_STUDIES > 0.2


def test_true_effects_beside_them_do_not_let_false_ones_through() -> None:
    planted = NOTHING._replace(effects=(0.0, 2.0, 0.0))
    nulls = [truth(contrast, planted) == 0 for contrast in CONTRASTS]
    assert sum(nulls) == 9
    false_alarms = powers = 0
    for values in planted.studies(NUM_STUDIES, stream=2):
        found = with_holm([estimate(contrast, values) for contrast in CONTRASTS])
        hits = [is_found(each) for each in found]
        false_alarms += any(hit for hit, is_null in zip(hits, nulls, strict=True) if is_null)
        powers += hits[1]
    assert false_alarms / NUM_STUDIES <= band(0.05)[1]
    assert powers / NUM_STUDIES > 0.9


def test_an_interaction_that_is_not_there_is_found_in_5_percent_of_studies() -> None:
    planted = LN_SPEED._replace(pair=0.0)
    interactions = [each for each in CONTRASTS if each.kind == "interaction"]
    found = dict.fromkeys((each.name for each in interactions), 0)
    for values in planted.studies(NUM_STUDIES, stream=3):
        for contrast in interactions:
            p_value = estimate(contrast, values).p_value
            found[contrast.name] += p_value is not None and p_value <= 0.05
    low, high = band(0.05)
    shares = {name: count / NUM_STUDIES for name, count in found.items()}
    assert {name: share for name, share in shares.items() if not low <= share <= high} == {}


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
    mains = [contrast for contrast in CONTRASTS if contrast.kind == "main"]
    errors: dict[str, list[float]] = {contrast.name: [] for contrast in mains}
    naive: list[float] = []
    for values in planted.studies(NUM_STUDIES, seeds=8, stream=4):
        left = without_slow_runs(values, random)
        for contrast in mains:
            found = estimate(contrast, left)
            if found.value is not None:
                errors[contrast.name].append(found.value - truth(contrast, LN_SPEED))
        means = {arm: statistics.fmean(runs.values()) for arm, runs in left.items()}
        weighed = sum(weight * means[arm] for arm, weight in mains[0].weights.items())
        naive.append(weighed - truth(mains[0], LN_SPEED))
    assert min(len(each) for each in errors.values()) > 0.95 * NUM_STUDIES
    assert max(abs(standard_score(each)) for each in errors.values()) < 4
    assert standard_score(naive) > 10


def standard_score(errors: list[float]) -> float:
    return statistics.fmean(errors) / (statistics.stdev(errors) / math.sqrt(len(errors)))
