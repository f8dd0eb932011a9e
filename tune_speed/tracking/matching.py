"""Trials that fit a filter: MLflow decides what its language can say, the rest is decided here."""

from collections.abc import Iterator

from tune_speed.records import TrialRecord
from tune_speed.standing import board_key
from tune_speed.tracking.queries import TrackedTrial, find_trials
from tune_speed.where import Where

NUM_CHECKED = 1000
"""Trials in which a filter's field is looked for before it counts as a mistake in writing."""


def find_matching(
    uri: str,
    where: Where | None,
    *,
    study: str | None = None,
    workload: str | None = None,
    device: str | None = None,
    kind: str | None = None,
    only_reached: bool = False,
) -> list[TrackedTrial]:
    """Returns the finished trials that fit, board by board, the fastest first and misses last.

    Args:
        uri: the store.
        where: a filter; None: all fit.
        study: only of this study.
        workload: only of this workload.
        device: only of devices whose name contains this, in whatever case.
        kind: only `estimate` or `certified`.
        only_reached: only those that met the target.

    Raises: ConfigError if the filter names a field that no trial has; ServiceError if the store
        does not answer or does not hold the study.
    """

    def find(
        also: str, *, only_reached: bool = False, limit: int | None = None
    ) -> list[TrackedTrial]:
        return find_trials(
            uri,
            study=study,
            workload=workload,
            device=device,
            kind=kind,
            only_reached=only_reached,
            also=also,
            limit=limit,
        )

    def to_check() -> Iterator[TrialRecord]:
        """Yields the records found; then, where a field is still unknown, what MLflow left out."""
        yield from (trial.record for trial in found)
        if pushed or only_reached:
            yield from (trial.record for trial in find("", limit=NUM_CHECKED))

    pushed = where.pushdown() if where else ""
    found = find(pushed, only_reached=only_reached)
    if where is not None:
        where.check(to_check())
        found = [trial for trial in found if where.matches(trial.record)]
    return sorted(found, key=lambda trial: board_key(trial.record))  # Stable: times stay in order.
