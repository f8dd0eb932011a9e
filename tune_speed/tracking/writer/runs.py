"""The MLflow runs of one study: found or created, written, ended. Every call may be repeated.

A call that failed may have reached the server: points carry fixed timestamps, parameters fixed
values, and `forget` makes the next look-up query the server, so that nothing is there twice.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tune_speed.core.errors import ConfigError
from tune_speed.core.text import counted, setting, switch
from tune_speed.runtime.file_lock import TemporaryFolder
from tune_speed.tracking import schema, search_summary
from tune_speed.tracking.store.store import Store, runs_with
from tune_speed.tracking.writer import descriptions

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput

# Time for another search that begins at the same moment to give way.
SETTLE_S = 3.0
# Longest wait for the study's experiment and parent run, some ten requests.
OPEN_S = 120.0


def open_parent(
    store: Store, experiment_id: str, *, study: str, tags: dict[str, str], is_only: bool = False
) -> str:
    """Returns the id of a search's own run, RUNNING, with `tags` set.

    Raises: ConfigError if it would be new, `is_only` and the store has another: `study/t0003` would
        mean two trials.
    """
    client, identity = store.client, {key: tags[key] for key in (schema.KIND, schema.SEARCH_ID)}
    run = next(runs_with(store, [experiment_id], identity), None)
    if run is None:
        return _create(store, experiment_id, study=study, tags=tags, is_only=is_only)
    for key, value in tags.items():
        # More trials, say, than when it began.
        if run.data.tags.get(key) != value:
            client.set_tag(run.info.run_id, key, value)
    if run.info.status != "RUNNING":
        client.update_run(run.info.run_id, status="RUNNING")
    return str(run.info.run_id)


def _create(
    store: Store, experiment_id: str, *, study: str, tags: dict[str, str], is_only: bool
) -> str:
    if is_only and (others := _others(store, experiment_id, tags)):
        raise _taken(store, others[0], study)
    run_id = str(store.client.create_run(experiment_id, tags=tags, run_name=study).info.run_id)
    # Of searches that begin at the same moment each has its run by now, so the later one sees the
    # other. Where both do, the greater id gives way at once, and the lesser waits to see that.
    rivals = _others(store, experiment_id, tags) if is_only else []
    if rivals and all(run_id < rival.info.run_id for rival in rivals):
        time.sleep(SETTLE_S)
        rivals = _others(store, experiment_id, tags)
    if rivals:
        store.client.delete_run(run_id)
        raise _taken(store, rivals[0], study)
    return run_id


def _others(store: Store, experiment_id: str, tags: dict[str, str]) -> list[Any]:
    kind = {schema.KIND: tags[schema.KIND]}
    return [
        run
        for run in runs_with(store, [experiment_id], kind)
        if run.data.tags.get(schema.SEARCH_ID) != tags[schema.SEARCH_ID]
        and (run.info.status == "RUNNING" or run.data.metrics.get(search_summary.NUM_TRIALS))
    ]


def _taken(store: Store, other: Any, study: str) -> ConfigError:
    user = other.data.tags.get("mlflow.user", "somebody")
    began = datetime.fromtimestamp(other.info.start_time / 1000, UTC)
    go_on = switch("resume")
    num_trials = other.data.metrics.get(search_summary.NUM_TRIALS, 0)
    return ConfigError(
        f"a study must have a name of its own in MLflow, but {store}"
        f" has a search of {study} whose ledger is not in this study's folder: begun by"
        f" {schema.clean(user, limit=80)} on {began:%Y-%m-%d %H:%M} UTC,"
        f" {counted(int(num_trials), 'trial')} finished, {other.info.status.lower()}. Give this one"
        f" another name with {setting('study', 'NAME')}, go on with that one by {go_on} where its"
        " folder is (TUNE_SPEED_STUDIES), or, if that is lost, rebuild its ledger here with"
        f" {go_on} {switch('from-mlflow')}."
    )


# Entries of one request; MLflow takes 1000 in all, 100 of them parameters and 100 tags.
MAX_METRICS, MAX_ENTRIES = 800, 100
# MLflow takes 1 MB.
MAX_REQUEST_CHARACTERS = 400_000

# The kind of experiment, as MLflow's own pages name it: else they guess it from its runs.
FOR_TRAINING = {"mlflow.experimentKind": "custom_model_development"}
COMPLETE = ("FINISHED", "FAILED")
ENDED = (*COMPLETE, "KILLED")
"""Status of a run that holds all there is: it is set last. KILLED is an interrupted trial."""

Key = tuple[str, str]
"""Kind and trial id."""


@dataclass
class RunRef:
    """An MLflow run as we know it."""

    run_id: str
    start_ms: int
    status: str
    params: dict[str, str] | None = field(default_factory=dict)
    """None: of a complete run, those in the store."""
    clock: str = ""
    """Step times that the record there is made of, see `schema.clock_of`."""
    end_ms: int = 0
    has_points: bool = False
    """Whether metrics are there: of an attempt that did not come to its end, as long as it runs."""

    @property
    def is_complete(self) -> bool:
        """Whether the trial ended and everything about it was delivered."""
        return self.status in COMPLETE

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    def fits(self, params: Mapping[str, str]) -> bool:
        """Whether another attempt at the trial may continue in this run."""
        # MLflow never changes a parameter. Steps of an attempt that broke off would be there twice,
        # at two times.
        known = (self.params or {}).items()
        is_same = all(params.get(key, value) == value for key, value in known)
        return is_same and (self.status in COMPLETE or not self.has_points)


def _data_of(plan: descriptions.SearchPlan, *, digest: str) -> "DatasetInput":
    from mlflow.entities import Dataset, DatasetInput, InputTag

    # A training function has data of its own.
    fields = plan.workload.get("dataset") or {"name": plan.workload_name}
    name = schema.clean(str(fields["name"]), limit=schema.MAX_KEY)
    source = schema.clean(json.dumps(fields, default=str), limit=schema.MAX_PARAM)
    dataset = Dataset(name, digest, source_type="tune_speed", source=source)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])


class StudyRuns:
    """The parent run of a study's search, and one run per trial."""

    def __init__(
        self, client: "MlflowClient", *, experiment_id: str, parent_id: str, tags: dict[str, str]
    ) -> None:
        self.experiment_id, self.parent = experiment_id, RunRef(parent_id, 0, "RUNNING")
        self._client, self._tags = client, tags
        self._refs: dict[Key, RunRef] | None = None

    @classmethod
    def open(
        cls,
        store: Store,
        *,
        study: str,
        search_id: str,
        tags: Mapping[str, str],
        parent_kind: str = schema.SEARCH,
        plan: descriptions.SearchPlan | None = None,
        is_only: bool = False,
    ) -> "StudyRuns":
        """Returns the runs of one search; its experiment and parent run are found or created.

        Raises: ServiceError or StorageError if the store does not take it within two minutes;
            ConfigError as `open_parent` does.
        """
        store.create()
        shared = schema.study_tag_entries(study, tags)
        run_tags = {**shared, **schema.user_tags()}
        experiment_tags = {**shared, **FOR_TRAINING, schema.KIND: schema.STUDY_KIND}
        searched = schema.searched_tag(plan.searched) if plan is not None else {}
        own = {**run_tags, **searched, schema.KIND: parent_kind, schema.SEARCH_ID: search_id}

        def opened(client: "MlflowClient") -> "StudyRuns":
            experiment_id = store.open_experiment(study, tags=experiment_tags)
            parent_id = open_parent(store, experiment_id, study=study, tags=own, is_only=is_only)
            if plan is not None:
                note = descriptions.study_note(plan)
                there = client.get_experiment(experiment_id).tags.get(descriptions.NOTE, "")
                # A description that somebody else wrote stays.
                if there != note and (not there or there.endswith(descriptions.OURS)):
                    client.set_experiment_tag(experiment_id, descriptions.NOTE, note)
                if digest := tags.get("workload_hash"):
                    client.log_inputs(parent_id, [_data_of(plan, digest=digest)])
            return cls(client, experiment_id=experiment_id, parent_id=parent_id, tags=run_tags)

        return store.call(opened, timeout_s=OPEN_S)

    def known(self) -> Mapping[Key, RunRef]:
        """Returns the runs of all trials; queries the server the first time and after `forget`."""
        if self._refs is None:
            self._refs = self._find_all()
        return self._refs

    def forget(self) -> None:
        self._refs = None

    def begin(self, key: Key, *, params: Mapping[str, str], start_ms: int) -> RunRef:
        """Returns the trial's run, RUNNING; one that does not fit goes to the trash."""
        ref = self.known().get(key)
        if ref is not None and ref.params is None:
            ref.params = dict(self._client.get_run(ref.run_id).data.params)
        if ref is not None and not ref.fits(params):
            self._client.delete_run(ref.run_id)
            ref = None
        if ref is None:
            return self._create(key, start_ms=start_ms)
        if ref.status != "RUNNING":
            self._client.update_run(ref.run_id, status="RUNNING")
            ref.status = "RUNNING"
        return ref

    def retag(self, tags: Mapping[str, str]) -> None:
        self._tags |= {k: v for k, v in schema.study_tags(tags).items() if k in self._tags}

    def write(
        self,
        ref: RunRef,
        *,
        points: Iterable[schema.Point] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(p.key, p.value, p.timestamp_ms, p.step) for p in dict.fromkeys(points)]
        metric_batches = _batches(metrics, MAX_METRICS)
        param_batches = _batches([Param(k, v) for k, v in (params or {}).items()], MAX_ENTRIES)
        tag_batches = _batches([RunTag(k, v) for k, v in (tags or {}).items()], MAX_ENTRIES)
        none: list[Any] = []
        for batch in zip_longest(metric_batches, param_batches, tag_batches, fillvalue=none):
            self._client.log_batch(ref.run_id, *batch)
        ref.has_points = ref.has_points or bool(metrics)

    def write_files(self, ref: RunRef, files: Mapping[str, str]) -> None:
        with TemporaryFolder() as folder:
            for name, text in files.items():
                (folder / name).write_text(text, encoding="utf-8")
            self._client.log_artifacts(ref.run_id, str(folder))

    def end(self, ref: RunRef, status: str) -> None:
        # A time of its own where it ended before: by that an index sees that it was changed.
        ref.end_ms = ref.end_ms + 1 if ref.is_complete else round(time.time() * 1000)
        self._client.set_terminated(ref.run_id, status, ref.end_ms)
        ref.status = status
        if ref.is_complete:
            ref.params = None

    def _create(self, key: Key, *, start_ms: int) -> RunRef:
        own = {**schema.start_tags(key[1], kind=key[0]), schema.PARENT: self.parent.run_id}
        tags, name = {**self._tags, **own}, schema.clean(key[1], limit=schema.MAX_KEY)
        refs = dict(self.known())
        # Until the answer is here: an error may hide that the run was created.
        self.forget()
        run = self._client.create_run(
            self.experiment_id, start_time=start_ms, tags=tags, run_name=name
        )
        ref = RunRef(run.info.run_id, run.info.start_time, "RUNNING")
        self._refs = {**refs, key: ref}
        return ref

    def _find_all(self) -> dict[Key, RunRef]:
        """Returns one run per trial; what a lost answer or an old fault left twice is deleted."""
        refs: dict[Key, RunRef] = {}
        twice: list[RunRef] = []
        found = runs_with(
            self._client,
            [self.experiment_id],
            {schema.PARENT: self.parent.run_id},
            also=f"tags.`{schema.TRIAL_ID}` IS NOT NULL",
            order_by=["attributes.start_time ASC"],
        )
        for run in found:
            tags = run.data.tags
            key = (tags.get(schema.KIND, ""), tags[schema.TRIAL_ID])
            info = run.info
            ref = RunRef(info.run_id, info.start_time, info.status, run.data.params)
            ref.clock, ref.has_points = tags.get(schema.CLOCK, ""), bool(run.data.metrics)
            ref.end_ms = info.end_time or 0
            if ref.is_complete:
                ref.params = None
            first = refs.setdefault(key, ref)
            if first is not ref:
                is_fuller = ref.is_complete > first.is_complete
                refs[key], other = (ref, first) if is_fuller else (first, ref)
                twice.append(other)
        # After all pages: deleting a run would shift them.
        for other in twice:
            self._client.delete_run(other.run_id)
        return refs


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    """Yields lists of at most `size` items that stay well below MLflow's limit in bytes."""
    length = 0
    part: list[Any] = []
    for item in items:
        added = len(str(item.value)) + len(item.key)
        if part and (len(part) == size or length + added > MAX_REQUEST_CHARACTERS):
            yield part
            length, part = 0, []
        length += added
        part.append(item)
    if part:
        yield part
