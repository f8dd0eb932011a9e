"""The state of a search, stored on its parent run so that listing studies reads one run each."""

from collections.abc import Mapping
from datetime import UTC, datetime

from tune_speed.core.comparability import ComparisonKey, board_key, fastest
from tune_speed.core.records import Recommended, Status, TrialRecord
from tune_speed.tracking import schema

NUM_TRIALS, BEST_TIME = "trials", "best_time_to_target_s"


class Summary:
    """Counts the trials of a search by status, and knows the fastest one."""

    def __init__(self) -> None:
        self.is_new = False
        """Whether something was added since `is_new` was last set to False."""
        self._statuses: dict[str, Status] = {}
        self._boards: dict[str, ComparisonKey] = {}
        self.best: TrialRecord | None = None
        """The fastest trial; None if none met the target."""
        self.favourites: tuple[Recommended, ...] = ()
        """What the search recommends, best first."""
        self.said: dict[str, str] = {}
        """Tags of the search's run that say what people changed, and of its end."""
        self._at_ms = 0

    def add(self, record: TrialRecord) -> None:
        """Takes a finished trial; taking it again changes nothing."""
        self._statuses[record.trial_id] = record.status
        self._boards[record.trial_id] = board_key(record)
        self.is_new = True
        self.best = fastest([record] if self.best is None else [self.best, record])
        self._at_ms = max(self._at_ms, schema.time_ms(record.finished_at) or 0)

    def forget_trials(self) -> None:
        """Forgets what trials came to; what the search recommends and what was said of it stay."""
        self._statuses.clear()
        self._boards.clear()
        self.best, self._at_ms = None, 0

    def recommend(self, favourites: tuple[Recommended, ...]) -> None:
        self.favourites, self.is_new = favourites, True

    def say(self, tags: Mapping[str, str]) -> None:
        self.said |= tags
        self.is_new = True

    def retold(self, now_ms: int) -> None:
        """Notes that records it has got other times at this moment [ms since 1970]."""
        # Of two figures at one step MLflow takes the later, and of one moment the larger.
        self._at_ms = max(self._at_ms, now_ms)

    def statuses(self) -> dict[Status, int]:
        """Returns how many trials ended in each status, those that none has among them."""
        found = list(self._statuses.values())
        return {status: found.count(status) for status in Status}

    def points(self) -> list[schema.Point]:
        """Returns the counts, and the best time to target [s] if there is one.

        Their time is that of the last end, so that delivering them twice leaves them once.
        """
        values = {NUM_TRIALS: float(len(self._statuses))}
        values |= {count_key(status): float(n) for status, n in self.statuses().items()}
        if self.best and self.best.time_to_target_s is not None:
            values[BEST_TIME] = self.best.time_to_target_s
        step = len(self._statuses)
        return [schema.Point(key, v, self._at_ms, step) for key, v in values.items()]

    def tags(self, *, now: datetime, run_ids: Mapping[str, str]) -> dict[str, str]:
        """Returns the last change, the fastest and the recommended; `run_ids` by trial."""
        best = {schema.BEST_TRIAL: self.best.trial_id} if self.best else {}
        named = [
            each.model_copy(update={"run_id": run_ids.get(each.trial_id, "")})
            for each in self.favourites
        ]
        if named:
            best |= schema.pack_favourites(named, self._boards[named[0].trial_id])
        updated = {schema.UPDATED_AT: now.astimezone(UTC).isoformat(timespec="seconds")}
        return {**updated, **best}


def count_key(status: Status) -> str:
    return f"trials_{status.value}"
