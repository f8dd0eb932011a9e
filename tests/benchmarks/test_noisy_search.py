"""The benchmark of noisy searches: how a side ends its budget, and what its file of rows keeps."""

import json
from collections import Counter
from pathlib import Path

import pytest
from bench_noisy_search import WORKERS, Row, read_rows, run_all
from noisy_sides import TIMES, TOP, WithReruns

from tune_speed.core.records import Status
from tune_speed.tuning.policy.base import params_key
from tune_speed.tuning.simulation.simulate import new_policy, run_policy
from tune_speed.tuning.simulation.synthetic import NOISY

FOUND_BEFORE: Row = {"seed": 0, "square": 0}


def search(seed: int) -> list[Row]:
    """A search that fails on a negative seed."""
    return [{"seed": seed, "square": round(seed**0.5) ** 4}]


def test_rows_of_all_searches_follow_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    assert read_rows(None) == read_rows(file) == []
    file.write_text(json.dumps([FOUND_BEFORE]))
    rows = read_rows(file)
    run_all(search, [4, 1, 9], rows, jobs=2, out=file)
    assert rows == [FOUND_BEFORE, *({"seed": n, "square": n**2} for n in (4, 1, 9))]
    assert read_rows(file) == rows


def test_a_search_that_fails_leaves_the_rows_of_those_before_it(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    with pytest.raises(TypeError):  # The root of -1 is complex, and cannot be rounded.
        run_all(search, [4, -1, 9], [], jobs=1, out=file)
    assert read_rows(file) == [{"seed": 4, "square": 16}]


def test_five_fastest_run_three_times_more_and_the_best_by_all_its_runs_is_recommended() -> None:
    benchmark = NOISY["noisy-2-fixed_length"].fresh(0)
    budget_s = 60 * benchmark.full_run_s / WORKERS
    policy = WithReruns(new_policy("random", benchmark, seed=1), budget_s=budget_s, workers=WORKERS)
    trace = run_policy(policy, benchmark, num_workers=WORKERS, budget_s=budget_s)
    again = [trial for trial in trace.trials if trial.reason == "one of the five fastest"]
    assert sorted(Counter(params_key(trial.params) for trial in again).values()) == [TIMES] * TOP
    before = [trial for trial in trace.trials if trial not in again]
    met = sorted(t.train_s for t in before if t.status == Status.REACHED)
    firsts = {params_key(t.params) for t in before if t.status == Status.REACHED}
    assert len(met) >= TOP and {params_key(trial.params) for trial in again} <= firsts
    spent_s, hits = Counter[object](), Counter[object]()
    for trial in trace.trials:
        spent_s[params_key(trial.params)] += trial.train_s
        hits[params_key(trial.params)] += trial.status == Status.REACHED
    best = min({params_key(t.params) for t in again}, key=lambda key: spent_s[key] / hits[key])
    assert trace.recommended is not None and params_key(trace.recommended) == best
