"""What a leaderboard queries of a store, through MLflow's client.

Reading the tables directly is faster: see `boards_sql`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from tune_speed.core.comparability import ComparisonKey, Totals, target_of
from tune_speed.tracking import schema
from tune_speed.tracking.reader.mlflow_filter import PAGE, runs_with
from tune_speed.tracking.reader.parent_run import PARENT
from tune_speed.tracking.reader.queries import HAS_RECORD, TrackedTrial, experiments_of, tracked
from tune_speed.tracking.store.store import open_store

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Parent runs alone have the tag: to find its key takes no look at the trials.
IS_SEARCH = f"tags.`{schema.SEARCH_ID}` LIKE '%'"
LEADERS_FIRST = {
    "max": (f"metrics.{schema.EXPECTED} ASC", f"metrics.{schema.FINAL_METRIC} DESC"),
    "min": (f"metrics.{schema.EXPECTED} ASC", f"metrics.{schema.FINAL_METRIC} ASC"),
}
"""By the mode of the board's target, which any of its trials names."""
# Rows beyond the leaders that a page has room for, as the last ones may tie.
NUM_SPARE = 10


class Search(NamedTuple):
    """A parent run, and what its trials come to: None if it does not say."""

    run_id: str
    experiment_id: str
    study: str
    totals: dict[ComparisonKey, Totals] | None
    favourites: schema.Favourites
    range_ends: tuple[str, ...] = ()
    """Ranges at whose ends its best lie, in words."""


class BoardReader(ABC):
    """What a leaderboard needs to know of the chosen studies of a store."""

    @abstractmethod
    def searches(self) -> list[Search]:
        """Returns the parent runs."""

    @abstractmethod
    def trials_of(self, searches: Sequence[Search]) -> Iterator[TrackedTrial]:
        """Yields all finished trials of these searches."""

    def in_order(self, key: ComparisonKey) -> Iterator[TrackedTrial]:
        """Yields those of a board's trials that have a rank and say so themselves, fastest first.

        Ties, in time and final metric, come in any order.
        """
        trials = self.ranked(key, "max")
        first = next(trials, None)
        if first is None:
            return
        if target_of(first.record.workload).mode == "min":
            yield from self.ranked(key, "min")
        else:
            yield first
            yield from trials

    @abstractmethod
    def ranked(self, key: ComparisonKey, mode: str) -> Iterator[TrackedTrial]:
        """Yields what `in_order` does, where `mode` is that of the board's target."""

    @abstractmethod
    def by_id(self, run_ids: Sequence[str]) -> Iterator[TrackedTrial]:
        """Yields the finished trials with these MLflow ids that are not in the trash."""

    @abstractmethod
    def any_of(self, key: ComparisonKey) -> Iterator[TrackedTrial]:
        """Yields those of a board's trials that say so themselves, in any order."""


class MlflowReader(BoardReader):
    """Queries through MLflow's client: one ordered query a board."""

    def __init__(self, client: "MlflowClient", experiments: Sequence[str], *, top: int) -> None:
        self._client, self._experiments = client, experiments
        self._page_size = min(top + NUM_SPARE, PAGE)

    @classmethod
    def open(cls, uri: str, study: str | None, *, top: int) -> "MlflowReader":
        """Returns a reader. Raises: ServiceError without the store, ConfigError without study."""
        client = open_store(uri, create=False)
        return cls(client, experiments_of(client, uri, study), top=top)

    def searches(self) -> list[Search]:
        runs = runs_with(self._client, self._experiments, {}, also=IS_SEARCH)
        infos = [(run.info.run_id, run.info.experiment_id, run.data.tags) for run in runs]
        return [
            Search(
                run_id,
                experiment,
                tags.get(schema.STUDY, ""),
                schema.unpack_boards(tags),
                schema.unpack_favourites(tags),
                schema.unpack_range_ends(tags),
            )
            for run_id, experiment, tags in infos
        ]

    def trials_of(self, searches: Sequence[Search]) -> Iterator[TrackedTrial]:
        for search in searches:
            parent = {PARENT: search.run_id}
            runs = runs_with(self._client, [search.experiment_id], parent, also=HAS_RECORD)
            yield from tracked(runs)

    def by_id(self, run_ids: Sequence[str]) -> Iterator[TrackedTrial]:
        if not run_ids:
            return iter(())
        names = ", ".join(f"'{run_id}'" for run_id in run_ids)
        also = f"attributes.run_id IN ({names})"
        return tracked(runs_with(self._client, self._experiments, {}, also=also))

    def any_of(self, key: ComparisonKey) -> Iterator[TrackedTrial]:
        return tracked(self._runs(key))

    def ranked(self, key: ComparisonKey, mode: str) -> Iterator[TrackedTrial]:
        runs = self._runs(key, order_by=LEADERS_FIRST[mode])
        return tracked(takewhile(lambda run: schema.EXPECTED in run.data.metrics, runs))

    def _runs(self, key: ComparisonKey, *, order_by: Sequence[str] = ()) -> Iterator[Any]:
        board, size = {schema.BOARD: schema.board_id(key)}, self._page_size
        return runs_with(self._client, self._experiments, board, order_by=order_by, page_size=size)
