import json
import multiprocessing
import time
from dataclasses import asdict

import pytest
from helpers.tuning.policies import FACTORIES, random_cap
from pydantic import TypeAdapter

from tune_speed.core.errors import ConfigError
from tune_speed.tuning.policies import POLICY_NAMES
from tune_speed.tuning.simulation.benchmarks import Plan, Search, Terms, run_searches
from tune_speed.tuning.simulation.scores import best_at
from tune_speed.tuning.simulation.simulate import new_policy, run_policy
from tune_speed.tuning.simulation.synthetic import Synthetic

EASY = Synthetic(0.15, "fixed_length")
TERMS = Terms(budget_runs=3)


def run(policies: list[str], *, seeds: int = 1, jobs: int = 1) -> list[Search]:
    plan = Plan([EASY], policies, seeds=range(seeds), terms=TERMS, factories=FACTORIES)
    return list(run_searches(plan, jobs=jobs))


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_compared_policy_can_be_made(name: str) -> None:
    assert new_policy(name, EASY, 0).leader is None


def test_search_holds_what_simulate_finds() -> None:
    (search,) = run(["random"])
    budget_s = 3 * EASY.full_run_s / 4
    trace = run_policy(new_policy("random", EASY, 0), EASY, num_workers=4, budget_s=budget_s)
    assert search.incumbents == tuple((i.virtual_s, i.time_to_target_s) for i in trace.incumbents)
    assert sum(search.statuses.values()) == len(trace.trials)


@pytest.mark.parametrize("seed", range(4))
def test_smaller_budget_can_be_read_off(seed: int) -> None:
    terms = Terms(budget_runs=6)
    plan = Plan([EASY], ["random_cap"], seeds=[seed], terms=terms, factories=FACTORIES)
    budget_s = 2 * EASY.full_run_s / 4
    small = run_policy(random_cap(EASY, seed), EASY, num_workers=4, budget_s=budget_s)
    assert best_at(next(run_searches(plan)), budget_s) == small.best_s


def test_each_seed_is_complete_before_the_next_begins() -> None:
    done = run(["random", "random_cap"], seeds=2)
    assert [(s.seed, s.policy) for s in done] == [
        (0, "random"),
        (0, "random_cap"),
        (1, "random"),
        (1, "random_cap"),
    ]


def test_search_comes_back_from_json() -> None:
    (search,) = run(["random"])
    assert TypeAdapter(Search).validate_json(json.dumps(asdict(search))) == search


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError):
        run(["nobody"])


def test_processes_do_not_change_a_result() -> None:
    here, there = (run(["random", "random_cap"], seeds=2, jobs=jobs) for jobs in (1, 2))
    keys = [{(s.policy, s.seed): s.incumbents for s in searches} for searches in (here, there)]
    assert keys[0] == keys[1]


@pytest.mark.slow
def test_processes_end_when_nobody_waits_for_the_rest() -> None:
    terms = Terms(budget_runs=200)
    plan = Plan([EASY], ["random"], seeds=range(200), terms=terms)
    searches = run_searches(plan, jobs=2)
    next(searches)
    assert multiprocessing.active_children()
    searches.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 10
    while multiprocessing.active_children():
        assert time.monotonic() < deadline
        time.sleep(0.05)
