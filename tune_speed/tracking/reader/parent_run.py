"""The run of a whole search, found or created; one search of a name in a store."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tune_speed.core.errors import ConfigError
from tune_speed.core.text import counted
from tune_speed.tracking import schema, search_summary
from tune_speed.tracking.reader.mlflow_filter import runs_with
from tune_speed.tracking.store.uri import strip_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient

PARENT = "mlflow.parentRunId"
"""Tag of a trial's run: the run of its search."""
# Time for another search that begins at the same moment to give way.
SETTLE_S = 3.0


def open_parent(
    client: "MlflowClient",
    experiment_id: str,
    *,
    study: str,
    tags: dict[str, str],
    is_only: bool = False,
) -> str:
    """Returns the id of a search's own run, RUNNING, with `tags` set.

    Raises: ConfigError if it would be a new one, `is_only` to be one of its name, and the store has
        another, of a driver whose ledger lies elsewhere: `study/t0003` would mean two trials.
    """
    identity = {key: tags[key] for key in (schema.KIND, schema.SEARCH_ID)}
    run = next(runs_with(client, [experiment_id], identity), None)
    if run is None:
        return _create(client, experiment_id, study=study, tags=tags, is_only=is_only)
    for key, value in tags.items():
        # More trials, say, than when it began.
        if run.data.tags.get(key) != value:
            client.set_tag(run.info.run_id, key, value)
    if run.info.status != "RUNNING":
        client.update_run(run.info.run_id, status="RUNNING")
    return str(run.info.run_id)


def _create(
    client: "MlflowClient", experiment_id: str, *, study: str, tags: dict[str, str], is_only: bool
) -> str:
    if is_only and (others := _others(client, experiment_id, tags)):
        raise _taken(client, others[0], study)
    run_id = str(client.create_run(experiment_id, tags=tags, run_name=study).info.run_id)
    # Of searches that begin at the same moment each has its run by now, so the later one sees the
    # other. Where both do, the greater id gives way at once, and the lesser waits to see that.
    rivals = _others(client, experiment_id, tags) if is_only else []
    if rivals and all(run_id < rival.info.run_id for rival in rivals):
        time.sleep(SETTLE_S)
        rivals = _others(client, experiment_id, tags)
    if rivals:
        client.delete_run(run_id)
        raise _taken(client, rivals[0], study)
    return run_id


def _others(client: "MlflowClient", experiment_id: str, tags: dict[str, str]) -> list[Any]:
    kind = {schema.KIND: tags[schema.KIND]}
    return [
        run
        for run in runs_with(client, [experiment_id], kind)
        if run.data.tags.get(schema.SEARCH_ID) != tags[schema.SEARCH_ID]
        and (run.info.status == "RUNNING" or run.data.metrics.get(search_summary.NUM_TRIALS))
    ]


def _taken(client: "MlflowClient", other: Any, study: str) -> ConfigError:
    user = other.data.tags.get("mlflow.user", "somebody")
    began = datetime.fromtimestamp(other.info.start_time / 1000, UTC)
    num_trials = other.data.metrics.get(search_summary.NUM_TRIALS, 0)
    return ConfigError(
        f"a study must have a name of its own in MLflow, but {strip_secrets(client.tracking_uri)}"
        f" has a search of {study} whose ledger is not in this study's folder: begun by"
        f" {schema.clean(user, limit=80)} on {began:%Y-%m-%d %H:%M} UTC,"
        f" {counted(int(num_trials), 'trial')} finished, {other.info.status.lower()}. Give this one"
        " another name with --set study=NAME, go on with that one by --resume where its folder is"
        " (TUNE_SPEED_STUDIES), or, if that is lost, rebuild its ledger here with --resume"
        " --from-mlflow."
    )
