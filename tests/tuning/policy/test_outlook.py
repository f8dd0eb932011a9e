from typing import Any

import numpy as np
import pytest
from helpers.tuning.repeats import RIVALS, SHORT, TRIED, ask, ended, log_of, restored

from tune_speed.core.words import ProposalKind, ProposalReason
from tune_speed.study.settings import UntilConfig
from tune_speed.tuning.policy.gaussian_process import GaussianProcess, Scales
from tune_speed.tuning.policy.time_to_target import TimeToTarget

ALWAYS, NEVER = (UntilConfig(probability_of_better=p) for p in (0.9999, 1e-9))


def test_draws_have_the_means_and_deviations_of_the_posterior_and_move_together() -> None:
    scales = Scales(0.0, np.log(0.1), np.array([np.log(0.3)]))
    seen = np.array([[0.1], [0.4], [0.6]])
    process = GaussianProcess(seen, np.array([0.0, 1.0, 0.5]), np.zeros(3), scales)
    points = np.array([[0.2], [0.21], [0.95]])
    mean, sd = process.predict(points)
    drawn = process.sample(points, 20_000, np.random.default_rng(0))[..., 0]
    np.testing.assert_allclose(drawn.mean(axis=0), mean, atol=0.02)
    np.testing.assert_allclose(drawn.std(axis=0), sd, rtol=0.03)
    together = np.corrcoef(drawn.T)
    # A small part is each configuration's own: neighbours are not the same.
    assert 0.9 < together[0, 1] < 1.0 and abs(together[0, 2]) < 0.2


def settling(until: UntilConfig | None, *, spent: float, **parts: Any) -> TimeToTarget:
    policy = restored(RIVALS, until=until, hold_back=0.2, **parts)
    policy.spent = spent
    return policy


def test_settled_search_tells_its_favourites_apart_and_then_ends() -> None:
    policy = settling(ALWAYS, spent=0.4)
    for spent in (0.4, 0.45, 0.49):  # A fifth of 0.5 is held back.
        policy.spent = spent
        proposal = ask(policy)
        assert proposal.params in TRIED and proposal.reason.kind == "again"
        policy.finish(proposal.trial_id, RIVALS[TRIED.index(proposal.params)][1])
    policy.spent = 0.5
    assert policy.ask() is None
    why = policy.why_settled
    assert why is not None and (why.kind, why.figures["better_by"]) == ("settled", 0.05)


@pytest.mark.parametrize("until", [NEVER, None])
def test_search_that_may_find_something_better_goes_on(until: UntilConfig | None) -> None:
    policy = settling(until, spent=0.4)
    assert ask(policy).params not in TRIED
    assert policy.why_settled is None


def test_nothing_settles_before_a_hit_whatever_the_chance() -> None:
    policy = restored(log_of(SHORT), until=ALWAYS)
    policy.spent = 0.4
    assert ask(policy).params not in [proposal.params for proposal, _ in log_of(SHORT)]


def chance(*, spent: float, better_by: float = 0.05) -> float:
    until = UntilConfig(probability_of_better=1e-9, better_by=better_by)
    policy = settling(until, spent=spent)
    ask(policy)
    return policy._settling.chance[1]


def test_chance_falls_with_the_budget_left_and_with_how_much_better_it_must_be() -> None:
    assert chance(spent=0.1) > chance(spent=0.7)
    assert chance(spent=0.1) > chance(spent=0.1, better_by=0.3) > chance(spent=0.1, better_by=0.8)


def test_what_people_want_tried_is_tried_though_the_search_has_settled() -> None:
    policy = settling(ALWAYS, spent=0.4)
    ask(policy)
    policy.spent = 0.9
    policy.try_next({"x": 0.123, "epochs": 7}, reason=ProposalReason())
    assert ask(policy).params == {"x": 0.123, "epochs": 7}
    # And the favourite until it was run four times.
    again = policy.ask()
    assert again is not None and again.reason.kind is ProposalKind.AGAIN


def test_more_known_misses_around_the_favourite_lower_the_chance() -> None:
    few = chance(spent=0.5)
    misses = [
        ended(20 + i, x, epochs, 0.85)
        for i, (x, epochs) in enumerate([(x / 8, e) for x in range(9) for e in (1, 2, 3, 4)])
    ]
    policy = restored([*RIVALS, *misses], until=NEVER, hold_back=0.2)
    policy.spent = 0.5
    ask(policy)
    assert policy._settling.chance[1] < few
