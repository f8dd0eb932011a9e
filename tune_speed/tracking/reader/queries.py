"""Reads trials back, from any process, while a study is written or after it.

A record comes from a trial's tags in one request; its curves lie in an artifact (`find_trial`).
"""

import logging
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError, ServiceError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.text import recorded_device
from tune_speed.runtime.file_lock import TemporaryFolder
from tune_speed.tracking import schema
from tune_speed.tracking.reader import mlflow_filter
from tune_speed.tracking.reader.mlflow_filter import PAGE, experiments_with, runs_with
from tune_speed.tracking.search_summary import NUM_TRIALS
from tune_speed.tracking.store.errors import errors_of
from tune_speed.tracking.store.store import open_store, refuse_deleted
from tune_speed.tracking.store.uri import store_kind, strip_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient

HAS_RECORD = f"tags.`{schema.RECORD}` != ''"
FASTEST_FIRST = ("metrics.time_to_target_s ASC", "attributes.start_time ASC")
MIN_RUN_ID_PREFIX = 6
NUM_SUGGESTIONS = 5

_RUN_ID = re.compile(rf"[0-9a-f]{{{MIN_RUN_ID_PREFIX},32}}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackedTrial:
    """A finished trial, and where MLflow stores it."""

    run_id: str
    experiment_id: str
    record: TrialRecord
    has_curve: bool = False
    """False: each run has its last evaluation only, and a long traceback only its end."""

    @property
    def name(self) -> str:
        return f"{self.record.study}/{self.record.trial_id}"


def find_trials(
    uri: str,
    *,
    study: str | None = None,
    workload: str | None = None,
    device: str | None = None,
    kind: str | None = None,
    only_reached: bool = False,
    limit: int | None = None,
    with_curves: bool = False,
    also: str = "",
) -> list[TrackedTrial]:
    """Returns finished trials, fastest first and misses last, `limit` of them at most.

    `device` is part of its name in whatever case, `also` a condition in MLflow's filter language.
    Curves take a request for each trial.

    Raises: ServiceError if the store does not answer; ConfigError if it does not hold the study.
    """
    client = open_store(uri, create=False)
    wanted = {
        schema.WORKLOAD: workload,
        schema.KIND: kind,
        schema.STATUS: Status.REACHED.value if only_reached else None,
    }
    tags = {key: value for key, value in wanted.items() if value is not None}
    on_device = (
        "" if device is None else mlflow_filter.tag_contains(schema.DEVICE, recorded_device(device))
    )
    with errors_of(uri):
        experiments = experiments_of(client, uri, study)
        runs = runs_with(
            client,
            experiments,
            tags,
            order_by=FASTEST_FIRST,
            also=" AND ".join(filter(None, (HAS_RECORD, on_device, also))),
            page_size=PAGE if limit is None else max(1, min(limit, PAGE)),
        )
        trials = islice((t for t in tracked(runs) if is_on(t.record.device, device)), limit)
        return [with_curve(client, trial) for trial in trials] if with_curves else list(trials)


def find_trial(uri: str, trial: str) -> TrackedTrial:
    """Returns a trial with its curves, by run id (or first digits) or `study/trial[@certified]`.

    Raises: ConfigError if none or several fit, or it has not finished; ServiceError.
    """
    client = open_store(uri, create=False)
    with errors_of(uri):
        run = _run_of(client, uri, trial)
        record = schema.unpack_record(run.data.tags)
        if record is None:
            raise ConfigError(_no_record(run, trial))
        whole = whole_record(client, run.info.run_id)
        info, has_curve = run.info, whole is not None
        return TrackedTrial(info.run_id, info.experiment_id, whole or record, has_curve)


class FoundSearch(NamedTuple):
    """A search as MLflow has it."""

    run_id: str
    header: dict[str, Any]
    """Of what its ledger's header says, what MLflow has, too."""
    records: list[TrialRecord]
    """Its finished trials with their curves, in the order in which they ended."""


def find_search(uri: str, study: str) -> FoundSearch:
    """Returns a study's one search with trials. Raises: ServiceError; ConfigError."""
    client = open_store(uri, create=False)
    with errors_of(uri):
        experiments = experiments_of(client, uri, study)
        runs = list(runs_with(client, experiments, {schema.KIND: schema.SEARCH}))
        begun = [run for run in runs if run.data.metrics.get(NUM_TRIALS)]
        if len(begun) != 1:
            raise ConfigError(
                f"{strip_secrets(uri)} must have one search of {study!r} with finished trials, but"
                f" it has {len(begun)}. Begin the study anew, under another name."
            )
        (run,) = begun
        mine = {schema.PARENT: run.info.run_id, schema.KIND: "estimate"}
        trials = tracked(runs_with(client, experiments, mine, also=HAS_RECORD))
        found = {each.record.trial_id: with_curve(client, each).record for each in trials}
    names = ("search_id", "space_hash", "workload_hash", "protocol_version")
    header: dict[str, Any] = {n: run.data.tags.get(f"{schema.PREFIX}{n}", "") for n in names}
    if header["protocol_version"].isdecimal():
        header["protocol_version"] = int(header["protocol_version"])
    records = sorted(found.values(), key=lambda record: (record.finished_at, record.trial_id))
    return FoundSearch(run.info.run_id, header, records)


def is_on(name: object, device: str | None) -> bool:
    """Whether a device's name contains `device`, in whatever case; None is in any."""
    return device is None or recorded_device(device).casefold() in str(name).casefold()


def study_names(uri: str) -> list[str]:
    """Raises: ServiceError if the store does not answer or does not exist."""
    client = open_store(uri, create=False)
    with errors_of(uri):
        return [str(experiment.name) for experiment in experiments_with(client, _ANY_STUDY)]


def run_url(uri: str, trial: TrackedTrial) -> str | None:
    """Returns the address of the trial's page; None where no server shows it (see `ui_command`)."""
    if store_kind(uri) != "http":
        return None
    # Without a login: a browser prompts for it.
    uri = re.sub(r"//[^/]*@", "//", uri)
    return strip_secrets(f"{uri}/#/experiments/{trial.experiment_id}/runs/{trial.run_id}")


def ui_command(uri: str) -> str | None:
    """Returns the command that opens the store in MLflow's own pages; None where a server does."""
    if store_kind(uri) == "http":
        return None
    return f"mlflow ui --backend-store-uri {shlex.quote(strip_secrets(uri))}"


def experiments_of(client: "MlflowClient", uri: str, study: str | None) -> list[str]:
    if study is not None:
        found = client.get_experiment_by_name(study)
        refuse_deleted(found, uri)
        if found is not None:
            return [found.experiment_id]
    names = {e.name: e.experiment_id for e in experiments_with(client, _ANY_STUDY)}
    if not names:
        from mlflow.entities import ViewType

        for deleted in experiments_with(client, _ANY_STUDY, view_type=ViewType.DELETED_ONLY):
            refuse_deleted(deleted, uri)
        raise ServiceError(
            f"there is no study in {strip_secrets(uri)} yet. Run `tune-speed search"
            " digits_quickstart` first, or name another store with MLFLOW_TRACKING_URI."
        )
    if study is None:
        return list(names.values())
    if study in names:  # A search made it between the two queries.
        return [names[study]]
    near, shown = did_you_mean(study, names), list(map(repr, names))
    rest = f" and {len(shown) - NUM_SUGGESTIONS} more" if len(shown) > NUM_SUGGESTIONS else ""
    raise ConfigError(
        f"there is no study {study!r} in {strip_secrets(uri)}{near or '.'} It holds"
        f" {', '.join(shown[:NUM_SUGGESTIONS])}{rest}; `tune-speed list studies` lists all."
    )


def tracked(runs: Iterable[Any]) -> Iterator[TrackedTrial]:
    """Yields the trials of MLflow's runs; a run whose record cannot be read is named in the log."""
    for run in runs:
        record = schema.unpack_record(run.data.tags)
        if record is None:
            _log.warning("run %s is left out: its record cannot be read", run.info.run_id)
        else:
            yield TrackedTrial(run.info.run_id, run.info.experiment_id, record)


def _run_of(client: "MlflowClient", uri: str, trial: str) -> Any:
    study, slash, trial_id = trial.rpartition("/")
    experiments = experiments_of(client, uri, study if slash else None)
    if slash:
        name, _, kind = trial_id.partition("@")
        wanted = {schema.TRIAL_ID: name, schema.KIND: kind or "estimate"}
        found = list(runs_with(client, experiments, wanted))
    elif _RUN_ID.fullmatch(trial):
        also = f"attributes.run_id LIKE '{trial}%'"
        found = list(islice(runs_with(client, experiments, {}, also=also), 2))
    else:
        found = []
    if len(found) == 1:
        return found[0]
    raise ConfigError(_not_one(client, experiments, trial, found))


def _not_one(
    client: "MlflowClient", experiments: Sequence[str], trial: str, found: Sequence[Any]
) -> str:
    if found:
        return (
            f"{trial!r} must name one trial, but it fits {', '.join(map(_label, found))}. Give more"
            " of the run id."
        )
    if client.get_experiment_by_name(trial) is not None:
        return (
            f"{trial!r} must name a trial, but it is a study. Its board: tune-speed leaderboard"
            f" --study {shlex.quote(trial)}; one of its trials: {trial}/t0000."
        )
    finished = list(islice(runs_with(client, experiments, {}, also=HAS_RECORD), NUM_SUGGESTIONS))
    there = f"The latest there are {', '.join(map(_label, finished))}" if finished else ""
    return (
        f"{trial!r} must be the id of a trial's run (or its first {MIN_RUN_ID_PREFIX} digits or"
        f" more), or study/trial, but there is no such trial."
        f" {there or 'No trial has finished there yet'}."
    )


def _no_record(run: Any, trial: str) -> str:
    tags = run.data.tags
    if mlflow_filter.has_tags(run, {schema.KIND: schema.SEARCH}):
        return (
            f"{trial!r} must name a trial, but it is the search itself. Name a trial: study/t0000."
        )
    if schema.RECORD in tags:
        return f"the record of {trial!r} cannot be read: another version of tune_speed wrote it."
    state = tags.get(schema.STATUS, run.info.status.lower())
    return (
        f"the trial {trial!r} has not finished: it is {state}. Wait for it, or go on with"
        " a study that was interrupted by `tune-speed search … --resume`."
    )


def with_curve(client: "MlflowClient", trial: TrackedTrial) -> TrackedTrial:
    whole = whole_record(client, trial.run_id)
    return trial if whole is None else replace(trial, record=whole, has_curve=True)


def whole_record(client: "MlflowClient", run_id: str) -> TrialRecord | None:
    """Returns the record with its curves from the run's files, or None if they are gone."""
    from mlflow.exceptions import MlflowException

    with TemporaryFolder() as folder:
        try:
            path = client.download_artifacts(run_id, schema.RECORD_FILE, str(folder))
            return TrialRecord.model_validate_json(Path(path).read_bytes())
        except (MlflowException, OSError, ValidationError) as error:
            _log.debug("run %s has no readable %s", run_id, schema.RECORD_FILE, exc_info=error)
            return None


def _label(run: Any) -> str:
    tags, info = run.data.tags, run.info
    name = f"{tags.get(schema.STUDY, '?')}/{tags.get(schema.TRIAL_ID, info.run_name)}"
    return f"{name} (run {info.run_id})"


_ANY_STUDY = {schema.KIND: schema.STUDY_KIND}
