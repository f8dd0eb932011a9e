import json
import multiprocessing
import time
from dataclasses import asdict, replace

import pytest
from helpers.tuning.policies import FACTORIES, random_cap
from pydantic import TypeAdapter

from tune_speed.core.errors import ConfigError
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policies import POLICY_NAMES, make_policy
from tune_speed.tuning.policy.base import Cost, Policy, SearchTarget
from tune_speed.tuning.simulation.comparison import Search, Terms, full_run_s, run_searches
from tune_speed.tuning.simulation.scores import best_at
from tune_speed.tuning.simulation.simulate import Benchmark, run_policy, simulate
from tune_speed.tuning.simulation.synthetic import Synthetic

EASY = Synthetic(0.15, "fixed_length")
TERMS = Terms(budget_runs=3)


def run(policies: list[str], *, seeds: int = 1, jobs: int = 1) -> list[Search]:
    how = {"terms": TERMS, "jobs": jobs, "factories": FACTORIES}
    return list(run_searches([EASY], policies, seeds=range(seeds), **how))


def refused(benchmark: Benchmark, seed: int) -> Policy:
    raise AssertionError("must not be run again")


class Stretching:
    """A benchmark of its own making, which does not know its longest run."""

    name = "stretching"
    space = SearchSpace.from_tree({"epochs": {"low": 1.0, "high": 7.0}})
    target, mode = 0.9, "fixed_length"

    def predicted_cost(self, params: dict[str, float]) -> float:
        return 3.0 * params["epochs"]


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_compared_policy_can_be_made(name: str) -> None:
    policy = make_policy(
        name,
        space=EASY.space,
        target=SearchTarget(EASY.target, EASY.mode, 1e9),
        cost_of=lambda params: Cost(EASY.predicted_cost(params)),
        seed=0,
    )
    assert policy.leader is None


def test_search_holds_what_simulate_finds() -> None:
    (search,) = run(["random"])
    budget_s = 3 * EASY.full_run_s / 4
    trace = simulate("random", EASY, num_workers=4, budget_s=budget_s, seed=0)
    assert search.incumbents == tuple((i.virtual_s, i.time_to_target_s) for i in trace.incumbents)
    assert sum(search.statuses.values()) == len(trace.trials)


@pytest.mark.parametrize("seed", range(4))
def test_smaller_budget_can_be_read_off(seed: int) -> None:
    how = {"terms": Terms(budget_runs=6), "factories": FACTORIES}
    searches = run_searches([EASY], ["random_cap"], seeds=[seed], **how)
    budget_s = 2 * EASY.full_run_s / 4
    small = run_policy(random_cap(EASY, seed), EASY, num_workers=4, budget_s=budget_s)
    assert best_at(next(searches), budget_s) == small.best_s


def test_each_seed_is_complete_before_the_next_begins() -> None:
    done = run(["random", "random_cap"], seeds=2)
    assert [(s.seed, s.policy) for s in done] == [
        (0, "random"),
        (0, "random_cap"),
        (1, "random"),
        (1, "random_cap"),
    ]


def test_known_searches_are_not_run_again() -> None:
    how = {"seeds": [0, 1], "terms": TERMS}
    first = list(run_searches([EASY], ["random_cap"], **how, factories=FACTORIES))
    again = run_searches(
        [EASY], ["random_cap"], **how, factories={"random_cap": refused}, known=first
    )
    assert list(again) == first


def test_searches_of_other_terms_are_not_known() -> None:
    known = [replace(run(["random"])[0], terms=Terms(budget_runs=2), took_s=-1.0)]
    (search,) = run_searches([EASY], ["random"], seeds=[0], terms=TERMS, known=known)
    assert search.took_s > 0


def test_search_comes_back_from_json() -> None:
    (search,) = run(["random"])
    assert TypeAdapter(Search).validate_json(json.dumps(asdict(search))) == search


def test_longest_run_is_found_at_a_corner_where_none_is_told() -> None:
    assert full_run_s(Stretching()) == 21.0  # type: ignore[arg-type]
    assert full_run_s(EASY) == EASY.full_run_s


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError):
        run(["nobody"])


def test_processes_do_not_change_a_result() -> None:
    here, there = (run(["random", "random_cap"], seeds=2, jobs=jobs) for jobs in (1, 2))
    key = {search.key: search.incumbents for search in here}
    assert {search.key: search.incumbents for search in there} == key


@pytest.mark.slow
def test_processes_end_when_nobody_waits_for_the_rest() -> None:
    terms = Terms(budget_runs=200)
    searches = run_searches([EASY], ["random"], seeds=range(200), terms=terms, jobs=2)
    next(searches)
    assert multiprocessing.active_children()
    searches.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 10
    while multiprocessing.active_children():
        assert time.monotonic() < deadline
        time.sleep(0.05)
