import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.acquisition import (
    Brackets,
    Candidate,
    Evidence,
    Model,
    Objective,
    _allowed_at,
    _mutated,
    _Search,
    _some,
    best_candidate,
)
from tune_speed.tuning.policy.base import AcquisitionSettings
from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.policy.expected_time import gain_of_run, noise_at
from tune_speed.tuning.policy.gaussian_process import GaussianProcess, Scales, fit_scales

NAN = math.nan
# Units, values and points of this space are the same numbers.
ENCODER = Encoder(SearchSpace.from_tree({name: {"low": 0.0, "high": 1.0} for name in ("x", "y")}))
NONE_RUNNING = (np.zeros((0, 2)), np.zeros(0))
LED = Objective(best_s=20.0, has_leader=True, at_end=True, fractions=(1.0,))
BEFORE = LED._replace(has_leader=False)
FREE = LED._replace(at_end=False, fractions=(1.0, 0.8, 0.5))
FREE_BEFORE = FREE._replace(has_leader=False)


def evidence_of(num: int = 12, **changes: Any) -> Evidence:
    """Returns that of runs which end nearer the target the nearer they are to (0.3, 0.6)."""
    units = np.random.default_rng(5).random((num, 2))
    ends = -1.5 - 3 * np.hypot(units[:, 0] - 0.3, units[:, 1] - 0.6)
    found = Evidence(
        units=units,
        costs=2.0 + 10 * units[:, 0],
        distances=ends[:, None] - np.array([0.0, 0.1, 0.4]),
        variances=np.linspace(0.0, 0.2, num),
        ranks=ends,
        fits=np.ones(num, dtype=bool),
    )
    return found._replace(**changes)


def cost_of(params: dict[str, Any]) -> float:
    return 2.0 + 10 * float(params["x"])


def model_of(
    evidence: Evidence | None = None, objective: Objective = LED, **settings: Any
) -> Model:
    return Model(
        ENCODER,
        evidence or evidence_of(),
        has_cost=objective.at_end,
        settings=AcquisitionSettings(**settings),
        rng=np.random.default_rng(0),
    )


def search_of(
    evidence: Evidence | None = None,
    objective: Objective = LED,
    *,
    running: tuple[FloatArray, FloatArray] = NONE_RUNNING,
    allowed: Any = cost_of,
    **settings: Any,
) -> _Search:
    model = model_of(evidence, objective, **settings)
    return _Search(model, objective, model.with_running(*running), allowed)


def test_gain_before_a_hit_is_chance_times_log_of_the_saving_by_cost() -> None:
    search = search_of(evidence_of(4, costs=np.array([2.0, 4.0, NAN, 12.0])), BEFORE)
    found = search._gain(
        np.array([[0.5], [0.2], [0.9], [0.9], [0.4]]), np.array([5.0, 10.0, 20.0, 30.0, NAN])
    )
    expected = [
        0.5 * math.log(4) / 5**0.3,
        0.2 * math.log(2) / 10**0.3,
        # What takes as long as what is to be beaten or longer still ranks by its chance.
        0.9 * math.log(1.001) / 20**0.3,
        0.9 * math.log(1.001) / 30**0.3,
        # An unknown cost counts as the median of those known.
        0.4 * math.log(5) / 4**0.3,
    ]
    assert found == pytest.approx(expected)


def test_gain_of_a_free_length_before_a_hit_sums_chances_to_be_there_by_each_fraction() -> None:
    search = search_of(objective=FREE_BEFORE)
    found = search._gain(np.array([[0.3, 0.5, 0.2], [0.9, 0.6, 0.6]]), np.array([1.0, NAN]))
    later = np.array([math.log(1 / 0.8), math.log(0.8 / 0.5)])
    # Who is there earlier is there later too: chances never rise towards earlier fractions.
    assert found == pytest.approx(
        [0.3 * math.log(2) + later @ [0.3, 0.2], 0.9 * math.log(2) + later @ [0.6, 0.6]]
    )


def near_evidence(**changes: Any) -> Evidence:
    found = evidence_of(**changes)
    found.distances[:] += 0.8 - found.distances.max()
    return found


def drawn(mean: float, sd: float, noise_sd: float, *, cost_s: float) -> FloatArray:
    rng = np.random.default_rng(1)
    here = noise_at(np.array(mean), noise_sd)
    seen = rng.normal(mean, sd, 200_000) + rng.normal(0.0, here, 200_000)
    weight = sd**2 / (sd**2 + here**2)
    after = mean + weight * (seen - mean)
    spread = np.hypot(sd * np.sqrt(1 - weight), noise_at(after, noise_sd))
    log_chance = norm.logcdf(after / spread)
    return math.log(cost_s) - log_chance + np.maximum(math.log(0.9) - log_chance, 0.0)


def test_gain_after_a_hit_is_what_a_run_saves_of_the_expected_time_by_the_root_of_its_cost() -> (
    None
):
    search = search_of(near_evidence())
    new, costs = np.array([[0.3, 0.6], [0.1, 0.5], [0.4, 0.6]]), np.array([5.0, 3.0, NAN])
    gains, chances = search._score(new, costs)
    usual_s = float(np.median(near_evidence().costs))
    mean, sd = search._model.predict(search._of.points(new, costs))
    noise_sd = search._model.noise_sd
    means = mean[:, 0]
    np.testing.assert_allclose(chances, norm.cdf(means / np.hypot(sd, noise_at(means, noise_sd))))
    for i, cost_s in enumerate([5.0, 3.0, usual_s]):
        saved = np.maximum(math.log(20.0) - drawn(means[i], sd[i], noise_sd, cost_s=cost_s), 0.0)
        assert gains[i] == pytest.approx(saved.mean() / math.sqrt(cost_s), rel=0.03)
    # What costs more than it could save gains nothing.
    assert search._score(new[:1], np.array([20.0]))[0].tolist() == [0.0]


def test_gain_of_a_free_length_after_a_hit_is_measured_on_the_axis() -> None:
    search = search_of(near_evidence(), FREE)
    new = np.array([[0.3, 0.6], [0.2, 0.5]])
    gains, _ = search._score(new, np.array([1.0, NAN]))
    mean, sd = search._model.predict(new)
    expected = gain_of_run(
        mean,
        sd,
        search._model.noise_sd,
        log_cost=None,
        fractions=np.array(FREE.fractions),
        to_beat=np.zeros(2),
    )
    np.testing.assert_allclose(gains, expected)


def test_cost_is_a_coordinate_in_which_a_factor_of_twenty_is_a_whole_range() -> None:
    model = model_of(evidence_of(4, costs=np.array([2.0, 4.0, NAN, 12.0])))
    units = np.full((5, 2), 0.25)
    costs = np.array([12.0, 12 / math.e**3, 24.0, NAN, 0.0])
    points = model.points(units, costs)
    np.testing.assert_array_equal(points[:, :2], units)
    expected = [1.0, 0.0, 1 + math.log(2) / 3, 1 + math.log(4 / 12) / 3]
    assert points[:4, 2] == pytest.approx(expected)
    assert points[4, 2] == pytest.approx(1 + math.log(1e-9 / 12) / 3)
    for other in (model_of(objective=FREE), model_of(cost_feature=False)):
        assert other.points(units, costs).shape == (5, 2)
    unknown = model_of(evidence_of(costs=np.full(12, NAN)))
    assert unknown.points(units[:2], np.array([1.0, NAN]))[:, 2] == pytest.approx([1.0, 1.0])


def test_a_slow_networks_cost_is_no_longer_run_of_it() -> None:
    """Costs are a network's factor times the epochs: left over are the epochs, for each network."""
    tree = {
        "model": {"choices": ["a", "b", "c"]},
        "epochs": {"low": 1.0, "high": 20.0, "log": True},
    }
    encoder = Encoder(SearchSpace.from_tree(tree))
    units = np.random.default_rng(2).random((60, 2))

    def costs(units: FloatArray) -> FloatArray:
        params = encoder.params(units)
        factors = {"a": 1.0, "b": 9.0, "c": 0.2}
        return np.array([factors[p["model"]] * p["epochs"] for p in params])

    model = Model(
        encoder,
        evidence_of(60, units=units, costs=costs(units)),
        has_cost=True,
        settings=AcquisitionSettings(),
        rng=np.random.default_rng(0),
    )
    # The same length of each network, then a run of 20 times as many epochs.
    same = np.array([[1 / 6, 0.0], [3 / 6, 0.0], [5 / 6, 0.0], [1 / 6, 1.0]])
    column = model.points(same, costs(same))[:, -1]
    assert np.ptp(column[:3]) < 0.02
    assert column[3] - column[0] == pytest.approx(math.log(20) / 3)


def shares_of(values: FloatArray) -> FloatArray:
    return np.maximum(np.exp(-2 * np.abs(values)), 0.05)


def process_of(points: FloatArray, evidence: Evidence) -> GaussianProcess:
    values, own = evidence.distances, evidence.variances
    shares = shares_of(values[:, 0])
    scales = fit_scales(points, values[:, 0], own, shares=shares)
    return GaussianProcess(points, values, own, scales, shares=shares)


@pytest.mark.parametrize(
    ("best", "threshold", "luck"), [(-1.7, -1.2, 0.0), (-0.4, 0.0, 1.0), (0.7, 0.0, 1.0)]
)
def test_chance_is_of_the_mean_to_come_half_a_unit_nearer_or_of_a_run_to_meet_the_target(
    best: float, threshold: float, luck: float
) -> None:
    evidence = evidence_of()
    evidence.distances[:] += best - evidence.distances.max()
    search = search_of(evidence, FREE_BEFORE)
    new = np.random.default_rng(1).random((6, 2))
    gain, chance = search._score(new, np.full(6, NAN))
    model = process_of(evidence.units, evidence)
    means, function_sd = model.predict(new)
    observed_sd = np.hypot(function_sd[:, None], luck * noise_at(means, model.noise_sd))
    chances = norm.sf(threshold, means, observed_sd)
    np.testing.assert_allclose(chance, chances[:, 0])
    assert search._threshold == pytest.approx(threshold)
    np.testing.assert_allclose(gain, search._gain(chances, np.full(6, NAN)))
    assert (gain > 0).all()


def test_running_trials_count_as_seen_where_the_model_expects_them() -> None:
    evidence = evidence_of()
    there = np.array([[0.3, 0.6], [0.9, 0.1]])
    search = search_of(evidence, FREE, running=(there, np.array([5.0, NAN])))
    alone = process_of(evidence.units, evidence)
    ends = evidence.distances[:, 0]
    scales = fit_scales(evidence.units, ends, evidence.variances, shares=shares_of(ends))
    lies = alone.predict(there)[0]
    liar = GaussianProcess(
        np.concatenate([evidence.units, there]),
        np.concatenate([evidence.distances, lies]),
        np.append(evidence.variances, [0.0, 0.0]),
        scales,
        shares=shares_of(np.concatenate([ends, lies[:, 0]])),
    )
    new = np.random.default_rng(1).random((6, 2))
    for found, expected in zip(search._model.predict(new), liar.predict(new), strict=True):
        np.testing.assert_allclose(found, expected)
    assert (search._model.predict(there)[1] < alone.predict(there)[1]).all()


def test_distance_is_learned_from_what_fitted_into_memory_alone() -> None:
    evidence = evidence_of()
    evidence.fits[3:5] = False
    kept = Evidence(*(column[evidence.fits] for column in evidence))
    new = np.random.default_rng(1).random((4, 2))
    search = search_of(evidence, FREE)
    for found, expected in zip(
        search._model.predict(new), process_of(kept.units, kept).predict(new), strict=True
    ):
        np.testing.assert_allclose(found, expected)


def test_model_is_fitted_to_few_and_conditioned_on_more() -> None:
    evidence = evidence_of(30)
    search = search_of(evidence, FREE, fit_points=10, max_points=20)
    # The same draws, in the same order.
    rng = np.random.default_rng(0)
    rows = _some(np.arange(30), evidence.distances[:, 0], 20, rng)
    points, values = evidence.units[rows], evidence.distances[rows]
    few = _some(np.arange(20), values[:, 0], 10, rng)
    shares, own = shares_of(values[:, 0]), evidence.variances[rows]
    scales = fit_scales(points[few], values[few, 0], own[few], shares=shares[few])
    expected = GaussianProcess(points, values, own, scales, shares=shares)
    new = np.random.default_rng(1).random((4, 2))
    np.testing.assert_allclose(search._model.predict(new)[0], expected.predict(new)[0])


def test_where_all_fits_memory_plays_no_part_and_else_it_is_a_chance() -> None:
    new = np.random.default_rng(1).random((6, 2))
    assert model_of(objective=FREE).fits(new).tolist() == [1.0] * 6
    evidence = evidence_of()
    evidence.fits[evidence.units[:, 0] > 0.7] = False
    assert 2 <= (~evidence.fits).sum() <= 6
    search = search_of(evidence, FREE_BEFORE)
    values, none = np.where(evidence.fits, 1.0, -1.0), np.zeros(12)
    scales = fit_scales(evidence.units, values, none)
    room, sd = GaussianProcess(evidence.units, values, none, scales).predict(new)
    expected = norm.cdf(room, scale=np.sqrt(sd**2 + 0.05))
    np.testing.assert_allclose(search._of.fits(new), expected)
    # It multiplies the gain.
    gain, chance = search._score(new, np.full(6, NAN))
    means, sd = search._model.predict(new)
    assert search._threshold < 0  # So no luck is in the chances.
    chances = norm.sf(search._threshold, means, sd[:, None])
    np.testing.assert_allclose(gain, search._gain(chances, np.full(6, NAN)) * expected)
    roomy, narrow = search._of.fits(np.array([[0.1, 0.5], [0.95, 0.5]]))
    assert roomy > 0.9 > 0.5 > narrow
    assert chance.shape == (6,)


@pytest.mark.parametrize("still_fits", [True, False])
def test_memory_is_learned_from_the_last_64_trials(still_fits: bool) -> None:
    fits = np.full(70, still_fits)
    fits[:6] = not still_fits
    evidence = evidence_of(70, fits=fits)
    model = model_of(evidence)
    assert model._memory is not None
    # Of equal values nothing can be fitted: the scales are given.
    points, value = model.points(evidence.units, evidence.costs)[-64:], 2.0 * still_fits - 1
    scales = Scales(0.0, math.log(0.1), np.full(3, math.log(0.6)))
    own = GaussianProcess(points, np.full(64, value), np.zeros(64), scales)
    there = np.array([[0.5, 0.5, 0.8]])
    for found, theirs in zip(model._memory.predict(there), own.predict(there), strict=True):
        np.testing.assert_allclose(found, theirs)
    assert model._memory.predict(there)[0] == pytest.approx([value])


def test_best_six_are_kept_in_the_order_of_their_gains() -> None:
    refused = 0.5

    def allowed(params: dict[str, Any]) -> float | None:
        return None if params["y"] > refused else cost_of(params)

    search = search_of(allowed=allowed)
    drawn = np.random.default_rng(1).random((3, 40, 2))
    for units in drawn:
        search._add(_allowed_at(ENCODER, units, allowed))
    every = drawn.reshape(-1, 2)
    every = every[every[:, 1] <= refused]
    costs = 2.0 + 10 * every[:, 0]
    gains, chances = search._score(every, costs)
    order = np.argsort(-gains)[:6]
    assert [gain for gain, _ in search._best] == pytest.approx(gains[order].tolist())
    for place, (_, candidate) in zip(order, search._best, strict=True):
        np.testing.assert_array_equal(candidate.units, every[place])
        assert candidate.params == pytest.approx(dict(zip("xy", every[place], strict=True)))
        assert candidate.cost_s == pytest.approx(costs[place])
        assert candidate.chance == pytest.approx(chances[place])
    nothing = search_of(allowed=lambda params: None)
    nothing._add([])
    assert nothing._best == []


@pytest.mark.parametrize("objective", [LED, FREE, BEFORE, FREE_BEFORE])
def test_choice_is_the_best_of_all_that_was_seen(objective: Objective) -> None:
    seen: list[list[float]] = []

    def allowed(params: dict[str, Any]) -> float:
        seen.append([params["x"], params["y"]])
        return cost(params["x"])

    def cost(x: float) -> float:
        return 6.0 if x < 0.9 else 4.0

    evidence = near_evidence() if objective.has_leader else evidence_of()
    chosen = choose([], objective, allowed, evidence)
    assert chosen is not None
    units, search = np.array(seen), search_of(evidence, objective)
    # Evenly and around the best trials, then twice around the four best so far.
    assert len(seen) == 352
    gains = search._score(units, np.array([cost(x) for x in units[:, 0]]))[0]
    np.testing.assert_array_equal(chosen.units, units[gains.argmax()])
    for first, spread in ((256, 0.08), (304, 0.02)):
        centers = units[np.argsort(-gains[:first], kind="stable")[:4]]
        moved = units[first : first + 48].reshape(4, 12, 2) - centers[:, None]
        # 96 draws say a deviation to within 7 %; clipping can only shorten.
        assert 0.7 * spread < moved.std() < 1.3 * spread


def tried_at(*x: float, cost_s: float = 6.0) -> list[Candidate]:
    return [Candidate(np.array([at, 0.6]), {"x": at, "y": 0.6}, cost_s) for at in x]


def choose(
    tried: list[Candidate],
    objective: Objective = LED,
    allowed: Any = cost_of,
    evidence: Evidence | None = None,
    **settings: Any,
) -> Candidate | None:
    return best_candidate(
        model_of(evidence or near_evidence(), objective, **settings),
        objective,
        running=NONE_RUNNING,
        allowed=allowed,
        tried=tried,
        rng=np.random.default_rng(3),
    )


def test_another_run_is_worth_what_it_is_expected_to_save_of_the_least_expected_time() -> None:
    """Of the best one too: by its run it may turn out to be worse than the next."""
    tried = tried_at(0.3, 0.35, 0.9, 0.1)
    search = search_of(near_evidence(), least_gain=0.0)
    found = search.again(tried)
    units, costs = np.array([each.units for each in tried]), np.full(4, 6.0)
    mean, sd = search._model.predict(search._of.points(units, costs))
    noise_sd = search._model.noise_sd
    log_chance = norm.logcdf(mean[:, 0] / np.hypot(sd, noise_at(mean[:, 0], noise_sd)))
    now = math.log(6.0) - log_chance + np.maximum(math.log(0.9) - log_chance, 0.0)
    worth = []
    for i in range(4):
        after = drawn(mean[i, 0], sd[i], noise_sd, cost_s=6.0)
        worth.append(now.min() - np.minimum(after, np.delete(now, i).min()).mean())
    assert found is not None and found[1].params == tried[int(np.argmax(worth))].params
    assert found[0] == pytest.approx(max(worth) / math.sqrt(6.0), rel=0.03)
    # Where none saves as much as it must, none is run again.
    assert search_of(near_evidence(), least_gain=0.97 * max(worth)).again(tried) is not None
    assert search_of(near_evidence(), least_gain=1.03 * max(worth)).again(tried) is None


@pytest.mark.parametrize("objective", [LED, FREE])
def test_where_nothing_new_is_allowed_what_was_tried_runs_again(objective: Objective) -> None:
    tried = tried_at(0.3, 0.9)
    found = choose(tried, objective, allowed=lambda params: None, least_gain=0.0)
    assert found is not None and found.params in [each.params for each in tried]


@pytest.mark.parametrize("objective", [LED, FREE])
def test_only_what_was_tried_is_chosen_where_that_is_asked_for(objective: Objective) -> None:
    asked = objective._replace(only_again=True)
    tried = tried_at(0.1, 0.2, 0.3)
    found = choose(tried, asked, least_gain=0.0)
    assert found is not None and found.params in [each.params for each in tried]
    assert choose([], asked) is None
    # Nothing is forced where another run teaches next to nothing.
    assert choose(tried, asked, least_gain=100.0) is None


def test_before_a_hit_nothing_is_tried_again() -> None:
    tried = tried_at(0.3)
    assert choose(tried, BEFORE, allowed=lambda params: None, least_gain=0.0) is None


@pytest.mark.parametrize("objective", [LED, FREE])
def test_what_was_tried_and_what_was_not_compete_by_their_gains(objective: Objective) -> None:
    tried = tried_at(0.3, 0.31)
    new = choose([], objective)
    again = search_of(near_evidence(), objective, least_gain=0.0).again(tried)
    assert new is not None and again is not None
    gain = search_of(near_evidence(), objective)._score(new.units[None], np.array([new.cost_s]))[0]
    found = choose(tried, objective, least_gain=0.0)
    assert found is not None
    assert found.params == (again[1].params if again[0] > gain[0] else new.params)


def test_where_nothing_is_allowed_there_is_no_choice() -> None:
    assert choose([], allowed=lambda params: None) is None


def test_where_no_bracket_has_a_chance_any_cost_is_searched_with_what_was_prepared() -> None:
    made: list[Model] = []

    class Counted(Model):
        def with_running(self, units: FloatArray, costs: FloatArray) -> GaussianProcess:
            made.append(self)
            return super().with_running(units, costs)

    spread = LED._replace(brackets=Brackets(12.0, (0.0, 9.0, 9.0, 9.0)))
    settings: dict[str, Any] = {"running": NONE_RUNNING, "allowed": cost_of, "tried": []}
    for least_chance, is_within in ((0.0, True), (1.1, False)):
        model = model_of(near_evidence(), least_chance=least_chance)
        model.__class__ = Counted
        rng = np.random.default_rng(3)
        found = best_candidate(model, spread, rng=rng, **settings)
        assert found is not None and (found.cost_s > 12.0 / 3) == is_within
        assert len(made) == 1
        made.clear()


def test_half_of_the_candidates_lie_around_the_five_best_trials() -> None:
    seen: list[list[float]] = []

    def allowed(params: dict[str, Any]) -> float:
        seen.append([params["x"], params["y"]])
        return 1.0

    evidence = evidence_of(10)
    # The five that rank first lie in the middle, the others at the edge.
    evidence.units[:] = 0.01
    evidence.ranks[:] = np.arange(10.0)
    evidence.units[5:] = np.array([0.3, 0.4, 0.5, 0.6, 0.7])[:, None]
    choose([], FREE, allowed, evidence, num_candidates=8000)
    even, around = np.array(seen[:4000]), np.array(seen[4000:8000])
    assert np.quantile(even, [0.25, 0.5, 0.75], axis=0) == pytest.approx(
        np.array([[0.25] * 2, [0.5] * 2, [0.75] * 2]), abs=0.03
    )
    shifts = np.abs(around[:, :, None] - evidence.units[5:, 0]).max(axis=1)
    counts = np.bincount(shifts.argmin(axis=1), minlength=5)
    assert (counts > 500).all()
    # Deviations spread evenly over the logarithm, from 0.006 to 0.3.
    rng = np.random.default_rng(1)
    expected = np.abs(rng.normal(size=(200_000, 2)) * 10 ** rng.uniform(-2.2, -0.5, (200_000, 1)))
    nearest, own = np.sort(shifts.min(axis=1)), np.sort(expected.max(axis=1))
    for share in (0.1, 0.25, 0.5):
        ours, theirs = (values[int(share * len(values))] for values in (nearest, own))
        assert ours == pytest.approx(theirs, rel=0.12)


MIXED = Encoder(
    SearchSpace.from_tree(
        {
            "lr": {"low": 0.0, "high": 1.0},
            "two": {"choices": ["a", "b"]},
            "five": {"choices": ["a", "b", "c", "d", "e"]},
        }
    )
)


@pytest.mark.parametrize(("scale", "jumps"), [(0.05, 0.1), (0.3, 0.3)])
@pytest.mark.parametrize("is_array", [False, True])
def test_half_of_the_units_are_mutated_as_their_kinds_allow(
    scale: float, jumps: float, is_array: bool
) -> None:
    num, rng = 20_000, np.random.default_rng(0)
    scales = np.full((num, 1), scale) if is_array else scale
    moved = _mutated(MIXED, np.full((num, 3), 0.5), scales, rng)
    number, two, five = moved.T
    limit = 4.5 * math.sqrt(0.25 / num)
    assert np.mean(number == 0.5) == pytest.approx(0.5, abs=limit)
    # Clipping at the ends of the range hardly matters for a small deviation only.
    inner = np.abs(number[number != 0.5] - 0.5)
    assert np.median(inner) == pytest.approx(norm.ppf(0.75) * scale, rel=0.05)
    # Of two choices there is no neighbour: the other one, or the same again, are drawn.
    assert np.mean(two == 0.5) == pytest.approx(1 - 0.5 * (0.5 + jumps), abs=limit)
    for beside in (0.3, 0.7):
        assert np.isclose(five, beside).mean() == pytest.approx(0.5 * 0.25, abs=limit)
    assert np.mean(five == 0.5) == pytest.approx(1 - 0.5 * (0.5 + jumps), abs=limit)
    drawn = five[~np.isclose(five, 0.3) & ~np.isclose(five, 0.7) & (five != 0.5)]
    assert len(drawn) / num == pytest.approx(0.5 * jumps, abs=limit)
    assert np.quantile(drawn, [0.1, 0.9]) == pytest.approx([0.1, 0.9], abs=0.05)


def test_each_of_two_units_is_mutated_and_stays_below_one() -> None:
    rng = np.random.default_rng(0)
    moved = _mutated(ENCODER, np.full((1000, 2), 0.5), 1.0, rng)
    assert not (moved == 0.5).any()
    assert moved.min() == 0.0 and moved.max() == 1.0 - 1e-9


def test_of_many_the_best_two_thirds_and_others_at_random_are_kept() -> None:
    values = np.array([0.0, 9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0, 99.0])
    rows = np.arange(10)
    seen = set()
    for seed in range(40):
        found = _some(rows, values, 6, np.random.default_rng(seed))
        assert len(found) == 6 and (np.diff(found) > 0).all()
        assert {1, 3, 5, 7} <= set(found.tolist())
        seen |= set(found.tolist())
    assert seen == set(range(10))
    for limit in (10, 11):
        assert _some(rows, values, limit, np.random.default_rng(0)) is rows


def noisy_runs(mean_units: float, num: int, seed: int = 0) -> FloatArray:
    """Returns distances of runs whose metric differs by one unit: y = sign(u) ln(1 + |u|)."""
    units = mean_units + np.random.default_rng(seed).normal(size=num)
    distances: FloatArray = np.sign(units) * np.log1p(np.abs(units))
    return distances


def with_runs(evidence: Evidence, own: FloatArray) -> Evidence:
    """Returns it with runs of one more configuration, at (0.9, 0.9)."""
    num = len(own)
    return Evidence(
        units=np.concatenate([evidence.units, np.full((num, 2), 0.9)]),
        costs=np.concatenate([evidence.costs, np.full(num, 11.0)]),
        distances=np.concatenate([evidence.distances, own[:, None] - [[0.0, 0.1, 0.4]]]),
        variances=np.zeros(len(evidence.units) + num),
        ranks=np.concatenate([evidence.ranks, own]),
        fits=np.ones(len(evidence.units) + num, dtype=bool),
    )


def test_runs_far_from_the_target_tell_the_noise_that_the_near_ones_show() -> None:
    """Taken each by its own distance they told nearly twice the noise, and all seemed to hit."""
    model = model_of(with_runs(evidence_of(24), noisy_runs(-2.5, 200)))
    # To first order a run at the target differs by the same unit of the metric.
    assert model.process.noise_sd == pytest.approx(1.0, rel=0.15)


def test_of_very_many_runs_those_of_a_configuration_stay_alike_good_or_bad() -> None:
    """Else its good runs stay and its bad ones go, and it looks worth another run for ever."""
    means = []
    for seed in range(20):
        own = noisy_runs(-1.0, 60, seed)
        model = model_of(with_runs(evidence_of(60), own), max_points=60)
        points, values, *_ = model._seen
        here = (points[:, :2] == 0.9).all(axis=1)
        means.append(float(values[here, 0].mean() - own.mean()))
    assert abs(np.mean(means)) < 0.05, "the runs that stay are better than all"
