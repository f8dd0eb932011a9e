from pathlib import Path

import numpy as np
import pytest

from tune_speed.core.errors import ConfigError, StorageError
from tune_speed.tuning.simulation.comparison import Search, Terms
from tune_speed.tuning.simulation.report import check_format, comparison_figure, plot_comparison


def search(policy: str, seed: int, *, benchmark: str = "b", best_s: float = 5.0) -> Search:
    return Search(
        benchmark=benchmark,
        policy=policy,
        seed=seed,
        terms=Terms(budget_runs=8),
        full_run_s=100.0,
        best_known_s=None,
        incumbents=((10.0, best_s),),
        statuses={},
        took_s=0.0,
    )


def test_each_benchmark_has_a_panel_and_each_policy_one_name() -> None:
    searches = [search(p, 0, benchmark=b) for b in "abcd" for p in ("vanilla", "random")]
    figure = comparison_figure(searches, [8])
    shown = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title() for panel in shown] == ["a", "b", "c", "d"]
    assert [text.get_text() for text in figure.legends[0].texts] == ["vanilla", "random"]


def test_line_falls_from_the_longest_run_to_the_median_over_seeds() -> None:
    searches = [search("random", seed, best_s=time_s) for seed, time_s in enumerate([2, 8, 64])]
    (line,) = comparison_figure(searches, [8]).axes[0].get_lines()[:1]
    virtual_s, best_s = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    assert best_s[virtual_s < 10.0] == pytest.approx(100.0)
    assert best_s[virtual_s >= 10.0] == pytest.approx(8.0)
    assert virtual_s[-1] == pytest.approx(200.0)


def test_searches_that_found_nothing_are_drawn_too() -> None:
    nothing = [Search(**{**vars(search("random", 0)), "incumbents": ()})]
    (line,) = comparison_figure(nothing, [8]).axes[0].get_lines()[:1]
    assert np.asarray(line.get_ydata()) == pytest.approx(100.0)


def test_plot_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        plot_comparison([search("random", 0)], [8], tmp_path / "file" / "a.png")
    with pytest.raises(ConfigError, match="must be a file that ends in"):
        check_format(tmp_path / "a.xls")
