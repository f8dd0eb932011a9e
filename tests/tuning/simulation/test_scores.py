import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tune_speed.core.errors import StorageError
from tune_speed.tuning.simulation.benchmarks import Search, Terms
from tune_speed.tuning.simulation.report import comparison_figure, plot_comparison
from tune_speed.tuning.simulation.scores import Score, best_at, best_known_s, overall, ratio, score

TERMS = Terms(budget_runs=8, num_workers=4)


def search(
    policy: str, seed: int, incumbents: Sequence[tuple[float, float]], **fields: Any
) -> Search:
    """A search with 200 s of virtual time: eight runs of 100 s on four workers."""
    made: dict[str, Any] = {
        "benchmark": "b",
        "policy": policy,
        "seed": seed,
        "terms": TERMS,
        "full_run_s": 100.0,
        "best_known_s": None,
        "incumbents": tuple(incumbents),
        "statuses": {},
        "took_s": 0.0,
    }
    return Search(**{**made, **fields})


def scores(searches: list[Search], *, budget: float = 8) -> dict[str, Score]:
    return {one.policy: one for one in score(searches, [budget])}


def test_best_is_what_was_found_by_then() -> None:
    one = search("a", 0, [(10.0, 9.0), (20.0, 5.0)])
    assert [best_at(one, at_s) for at_s in (9.9, 10.0, 19.0, 20.0)] == [math.inf, 9.0, 9.0, 5.0]


def test_best_time_is_the_geometric_mean_over_seeds() -> None:
    made = scores([search("a", 0, [(1.0, 2.0)]), search("a", 1, [(1.0, 8.0)])])
    assert made["a"].best_s == pytest.approx(4.0)
    assert made["a"].num_missed == 0
    assert made["a"].best_ratio is None


def test_seed_that_missed_counts_with_the_longest_run() -> None:
    made = scores([search("a", 0, []), search("a", 1, [(1.0, 1.0)])])
    assert made["a"].best_s == pytest.approx(10.0)
    assert (made["a"].num_missed, made["a"].num_seeds) == (1, 2)


def test_smaller_budget_forgets_what_came_later() -> None:
    searches = [search("a", 0, [(10.0, 40.0), (60.0, 20.0)])]
    # Two full runs of 100 s on four workers are 50 s.
    assert scores(searches, budget=2)["a"].best_s == pytest.approx(40.0)
    assert scores(searches, budget=8)["a"].best_s == pytest.approx(20.0)


def test_near_is_measured_from_the_best_that_any_policy_found() -> None:
    searches = [
        search("vanilla", 0, [(5.0, 30.0), (150.0, 20.0)]),
        search("a", 0, [(3.0, 25.0), (9.0, 24.0)]),
        search("b", 0, [(3.0, 26.0)]),
    ]
    made = scores(searches)
    assert made["a"].near_s == pytest.approx(3.0)
    assert made["vanilla"].near_s == pytest.approx(150.0)
    assert made["b"].near_s == pytest.approx(200.0)
    assert [made[name].num_not_near for name in ("a", "vanilla", "b")] == [0, 0, 1]


def test_best_known_of_the_benchmark_counts_too() -> None:
    told = search("a", 0, [(3.0, 25.0)], best_known_s=10.0)
    assert best_known_s([told]) == 10.0
    assert scores([told])["a"].num_not_near == 1
    assert best_known_s([search("a", 0, [])]) == math.inf


def test_half_the_baseline_with_each_seed_is_a_ratio_of_a_half_for_sure() -> None:
    times = [3.0, 50.0, 7.0]
    searches = [search("vanilla", i, [(1.0, t)]) for i, t in enumerate(times)]
    searches += [search("a", i, [(1.0, t / 2)]) for i, t in enumerate(times)]
    found = scores(searches)["a"].best_ratio
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_interval_agrees_with_that_of_scipy() -> None:
    values = np.random.default_rng(3).normal(-1.0, 0.8, size=12)
    found = ratio([values])
    theirs = stats.bootstrap((values,), np.mean, method="percentile", rng=1, n_resamples=9999)
    interval = np.exp(np.array(theirs.confidence_interval))
    assert (found.low, found.high) == pytest.approx(tuple(interval), rel=0.03)
    assert found.value == pytest.approx(math.exp(values.mean()))


def test_one_pair_of_seeds_has_no_interval() -> None:
    searches = [search("vanilla", s, [(1.0, 8.0)]) for s in (0, 1)]
    found = scores([*searches, search("a", 1, [(1.0, 2.0)])])["a"].best_ratio
    assert found is not None
    assert (found.value, found.low, found.high) == (pytest.approx(0.25), None, None)


def test_overall_ratio_is_the_geometric_mean_over_benchmarks() -> None:
    searches = [
        search(policy, seed, [(1.0, time_s)], benchmark=benchmark)
        for benchmark, policy, time_s in [
            ("b", "vanilla", 10.0),
            ("b", "a", 1.0),
            ("c", "vanilla", 10.0),
            ("c", "a", 16.0),
        ]
        for seed in (0, 1)
    ]
    (row,) = overall(searches, [8])
    assert row.policy == "a"
    assert row.best_ratio.value == pytest.approx(0.4)
    assert row.worst_ratio == pytest.approx(1.6)
    assert row.num_benchmarks == 2


def test_without_the_baseline_nothing_is_overall() -> None:
    assert overall([search("a", 0, [(1.0, 2.0)])], [8]) == []


def drawn(policy: str, seed: int, best_s: float = 5.0, **fields: Any) -> Search:
    return search(policy, seed, [(10.0, best_s)], **fields)


def test_each_benchmark_has_a_panel_and_each_policy_one_name() -> None:
    searches = [drawn(p, 0, benchmark=b) for b in "abcd" for p in ("vanilla", "random")]
    figure = comparison_figure(searches, [8])
    shown = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title() for panel in shown] == ["a", "b", "c", "d"]
    assert [text.get_text() for text in figure.legends[0].texts] == ["vanilla", "random"]


def test_line_falls_from_the_longest_run_to_the_median_over_seeds() -> None:
    searches = [drawn("random", seed, time_s) for seed, time_s in enumerate([2, 8, 64])]
    (line,) = comparison_figure(searches, [8]).axes[0].get_lines()[:1]
    virtual_s, best_s = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    assert best_s[virtual_s < 10.0] == pytest.approx(100.0)
    assert best_s[virtual_s >= 10.0] == pytest.approx(8.0)
    assert virtual_s[-1] == pytest.approx(200.0)


def test_searches_that_found_nothing_are_drawn_too() -> None:
    nothing = [search("random", 0, [])]
    (line,) = comparison_figure(nothing, [8]).axes[0].get_lines()[:1]
    assert np.asarray(line.get_ydata()) == pytest.approx(100.0)


def test_plot_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        plot_comparison([drawn("random", 0)], [8], tmp_path / "file" / "a.png")
