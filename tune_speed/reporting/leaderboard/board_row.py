"""One configuration as leaderboards show it."""

from typing import Any

from tune_speed.core.comparability import Totals, final_metric
from tune_speed.core.config import Config
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.stats import finite_or_none, median_interval_s, median_time_s, wilson_interval
from tune_speed.reporting.leaderboard.ranking_folded import timed


class Row(Config):
    """One configuration on a leaderboard."""

    rank: int | None
    """1 is the fastest; None for a configuration that missed the target. Rows whose interval of the
    expected time overlaps that of the first row of their rank share it (see `ranking`)."""
    tied: bool
    """Whether others share the rank."""
    study: str
    trial_id: str
    time_to_target_s: float | None
    """Median over runs [s], misses counting as infinite; None if it is infinite."""
    median_low_s: float | None
    """Lower end of the median's interval [s], of 95 % confidence where there are six runs or more,
    otherwise from the shortest to the longest; None: infinite."""
    median_high_s: float | None
    """Upper end of it [s]; None: infinite."""
    expected_s: float | None
    """Expected time with restarts, all time / hits [s]; None: infinite. Rows are ranked by it."""
    expected_low_s: float | None
    """Lower end of its 95 % interval [s]; None: infinite."""
    expected_high_s: float | None
    """Upper end of it [s]; None: infinite."""
    interval_of: str
    """What that interval is made of. `seeds`: the spread over several runs. `step time`: how
    exactly the isolated step time of a single run was measured. The spread over seeds is left out
    then: with it, what ties would tie all the more, and what leads might not. `none`: a single run
    on a clock without an interval; only equal times tie."""
    hits: int
    """Runs that met the target."""
    n: int
    """Runs."""
    hit_rate_low: float
    """Lower end of the 95 % Wilson interval of the success rate."""
    hit_rate_high: float
    """Upper end of it."""
    final_metric: float | None
    """The target metric at the end of the last run."""
    status: str
    """How the last run ended."""
    params: dict[str, Any]
    """What the search chose."""
    steps: int
    """Optimizer steps of the last run."""
    images_per_s: float | None
    """Training samples per second of the training clock."""
    peak_memory_gib: float | None
    timing: str
    """What the training clocks are made of: `isolated`, `exclusive` or `shared`."""
    slowdown: float | None
    """How much longer the last run took beside its co-tenants; None if it was alone."""
    verification: str
    """How far to believe it: `estimate`, or a certificate's word."""
    speedup: float | None
    """Of a certified row: the rival's time / this one's; above 1 this one is faster."""
    rival: str | None
    """Whom it was timed beside: the leader, or for the leader the best of the others."""
    p_value: float | None
    """One-sided, of being faster than the rival; over several finalists corrected (Holm)."""
    study_trials: int | None
    """Trials of its study's search on this workload, protocol and device, misses included: what it
    took to find it. Of a certified row as its certificate says. None: not known."""
    study_device_s: float | None
    """Seconds for which they held a device (see `Totals.device_s`); None: not known."""
    run_id: str | None
    """MLflow run, for `tune-speed show` and `tune-speed train`."""

    @property
    def place(self) -> str:
        """The rank as people write it: `1`, `1=` where it is shared, `–` without one."""
        return "–" if self.rank is None else f"{self.rank}{'=' if self.tied else ''}"


def make_row(record: TrialRecord, *, run_id: str | None, search: Totals | None) -> Row:
    """Returns the row of a record, without its rank.

    Args:
        record: with one run or more.
        run_id: its MLflow run.
        search: what the trials of the search that found it come to; None: not known.
    """
    hits = sum(run.status == Status.REACHED for run in record.runs)
    n, last = len(record.runs), record.runs[-1]
    low, high = wilson_interval(hits, n)
    verification = (record.certificate or {}).get("verification", {})
    adjusted = verification.get("adjusted_p_value")
    return Row(
        rank=None,
        tied=False,
        study=record.study,
        trial_id=record.trial_id,
        time_to_target_s=median_time_s([run.time_to_target_s for run in record.runs]),
        **_times(record),
        hits=hits,
        n=n,
        hit_rate_low=low,
        hit_rate_high=high,
        final_metric=final_metric(record),
        status=record.status.value,
        params=record.params,
        steps=last.steps,
        images_per_s=last.images_per_s,
        peak_memory_gib=last.peak_memory_gib,
        timing=", ".join(sorted({run.timing.value for run in record.runs})),
        slowdown=last.slowdown,
        verification=verification.get("status", record.kind),
        speedup=verification.get("speedup"),
        rival=verification.get("incumbent"),
        p_value=verification.get("p_value") if adjusted is None else adjusted,
        **_search_cost(record, search),
        run_id=run_id,
    )


def _search_cost(record: TrialRecord, search: Totals | None) -> dict[str, Any]:
    """Returns what it took to find the record: as its certificate says, or the search's totals."""
    found = (record.certificate or {}).get("provenance", {})
    counted = search.model_dump() if search else {}
    return {
        "study_trials": found.get("tuning_trials", counted.get("trials")),
        "study_device_s": found.get("tuning_device_s", counted.get("device_s")),
    }


def _times(record: TrialRecord) -> dict[str, Any]:
    """Returns expected and median times [s], each with its interval."""
    expected = timed(record)
    return {
        **_median_interval(record),
        "expected_s": finite_or_none(expected.expected_s),
        "expected_low_s": finite_or_none(expected.low_s),
        "expected_high_s": finite_or_none(expected.high_s),
        "interval_of": expected.interval_of,
    }


def _median_interval(record: TrialRecord) -> dict[str, float | None]:
    """Returns the ends of the median's interval [s]; those of a single run are its time."""
    if len(record.runs) == 1:
        return dict.fromkeys(("median_low_s", "median_high_s"), record.time_to_target_s)
    median = median_interval_s([run.time_to_target_s for run in record.runs])
    return {
        "median_low_s": finite_or_none(median.low),
        "median_high_s": finite_or_none(median.high),
    }
