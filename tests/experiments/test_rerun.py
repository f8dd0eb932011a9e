import pytest
from helpers.making import WORKLOAD, make_record, make_run
from helpers.texts import Texts

from tune_speed.core.records import RunResult, Status, Timing, TrialRecord
from tune_speed.core.words import IN_WORDS, read_notes
from tune_speed.experiments.rerun import merged
from tune_speed.experiments.run_summary import describe_runs, runs_dict, runs_text

REACHED, MISSED = Status.REACHED, Status.MISSED


def make_seeds(*times_s: float, missed_s: tuple[float, ...] = ()) -> TrialRecord:
    hits = [make_run(time_s=time_s, accuracy=0.92) for time_s in times_s]
    misses = [make_run(MISSED, time_s=time_s, accuracy=0.88) for time_s in missed_s]
    runs = [run.model_copy(update={"seed": i}) for i, run in enumerate([*hits, *misses])]
    return make_record(runs=tuple(runs))


def with_timing(run: RunResult, timing: Timing, *cotenants: str, note: str = "") -> RunResult:
    return run.model_copy(
        update={"timing": timing, "cotenants": cotenants, "note": read_notes(note)}
    )


def test_statistics_of_two_hits_and_a_miss_by_hand() -> None:
    found = describe_runs(make_seeds(1.0, 3.0, missed_s=(5.0,)))
    assert (found.n, found.k, found.times_s) == (3, 2, (1.0, 3.0, None))
    # Wilson: centre (2/3 + z²/6) / (1 + z²/3), half-width z sqrt(2/27 + z²/36) / (1 + z²/3).
    assert found.success_rate.low == pytest.approx(0.2077, abs=1e-4)
    assert found.success_rate.high == pytest.approx(0.9385, abs=1e-4)
    assert found.median_s == 3.0
    # The range of three holds the median unless all lie on one side: 1 - 2 / 8.
    median = found.median_interval
    assert (median.low_s, median.high_s, median.confidence) == (1.0, None, 0.75)
    assert found.mean_hit_s == 2.0
    assert found.expected_s == 9.0 / 2
    assert found.final_accuracy.mean == pytest.approx((0.92 + 0.92 + 0.88) / 3)
    assert found.margin == pytest.approx((0.92 + 0.92 + 0.88) / 3 - 0.9)
    # Deviations 4/300, 4/300, -8/300: SD sqrt(96 / 90000 / 2). Student's t for 2 degrees: 2.9200.
    spread = (96 / 90000 / 2 * (1 + 1 / 3)) ** 0.5
    assert found.needed_margin == pytest.approx(2.9199856 * spread)


@pytest.mark.parametrize(("hits", "misses"), [((1.0,), (5.0, 6.0)), ((), (5.0, 6.0)), ((1.0,), ())])
def test_misses_are_infinite_and_few_runs_have_no_interval(
    hits: tuple[float, ...], misses: tuple[float, ...], kept_text: Texts
) -> None:
    record = make_seeds(*hits, missed_s=misses)
    kept_text(runs_text(record))
    found = describe_runs(record)
    if not hits:
        assert (found.mean_hit_s, found.expected_s, found.expected_interval.high_s) == (None,) * 3
    assert bool(misses) or found.median_interval.confidence == 0


def test_run_that_broke_is_a_miss_without_a_final_accuracy() -> None:
    broken = RunResult(status=Status.OOM, seed=1, stop_reason="out of memory")
    found = describe_runs(make_record(runs=(make_run(time_s=2.0), broken)))
    assert (found.k, found.n, found.final_accuracy.n) == (1, 2, 1)
    # Its training clock never ran, but no miss is free: a millisecond.
    assert found.expected_s == pytest.approx(2.001)


def test_final_metric_and_margin_are_the_targets() -> None:
    workload = {**WORKLOAD, "target": {"metric": "macro_f1", "value": 0.4}}
    record = make_seeds(1.0, 2.0).model_copy(update={"workload": workload})
    # Made-up evaluations have half their accuracy as macro F1: 0.46.
    assert describe_runs(record).margin == pytest.approx(0.06)
    assert "final macro_f1   0.460000 ± 0.0000 (sd), n = 2" in runs_text(record)


def test_anytime_mode_has_no_margin_and_misses_cost_the_limit() -> None:
    workload = {**WORKLOAD, "mode": "anytime", "max_train_s": 100.0}
    fixed = make_seeds(1.0, 1.1, 1.2)
    anytime = fixed.model_copy(update={"workload": workload})
    found = describe_runs(anytime)
    assert (found.margin, found.needed_margin) == (None, None)
    before, after = (describe_runs(r).expected_interval.high_s for r in (fixed, anytime))
    assert before is not None and after is not None
    assert after > 10 * before


def test_exclusive_isolated_and_shared_clocks_are_told_apart(kept_text: Texts) -> None:
    run = make_run()
    runs = (
        with_timing(run, Timing.EXCLUSIVE),
        with_timing(run, Timing.ISOLATED, "other/t0001"),
        with_timing(run, Timing.SHARED, "other/t0002", note="no step could be timed"),
    )
    kept_text(runs_text(make_record(runs=runs)))
    assert "upper bounds" not in runs_text(make_record(runs=runs[:1]))


def test_json_keeps_the_records_fields_at_the_top() -> None:
    record = make_seeds(1.0, missed_s=(2.0,))
    fields = runs_dict(record)
    statistics = fields.pop("statistics")
    assert fields == record.model_dump(mode="json", context=IN_WORDS)
    assert statistics["median_s"] is None
    assert statistics["timing"] == {"shared": 2}


def test_merged_record_has_all_runs_and_spans_all_times() -> None:
    first = make_record().model_copy(update={"started_at": "2025"})
    both = merged([first, make_record(status=MISSED)])
    assert both is not None
    assert [run.status for run in both.runs] == [REACHED, MISSED]
    assert (both.started_at, both.status) == ("2025", MISSED)
    assert merged([]) is None
