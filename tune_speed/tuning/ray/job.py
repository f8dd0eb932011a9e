"""Checks of a search that runs as a Ray job, started by `ray job submit`."""

from pathlib import Path

from tune_speed.core.errors import ConfigError

# Part of every path in a job's working directory. Ray deletes it some time after the job.
WORKING_DIRS = "/runtime_resources/working_dir_files/"


def refuse_throw_away(folder: Path, uri: str) -> None:
    """Raises a ConfigError if a study's files or results would be deleted with a job.

    `uri` of the MLflow store is absolute.
    """
    places = {"TUNE_SPEED_STUDIES": str(folder), "MLFLOW_TRACKING_URI": uri}
    lost = [name for name, place in places.items() if WORKING_DIRS in place]
    if lost:
        raise ConfigError(
            "a search in a Ray job must keep its results outside of the job's working directory,"
            f" which Ray deletes later, but got {' and '.join(places[name] for name in lost)}. Set"
            f' {" and ".join(lost)}: ray job submit --runtime-env-json \'{{"env_vars":'
            ' {"TUNE_SPEED_STUDIES": "/a/shared/folder", "MLFLOW_TRACKING_URI":'
            ' "http://HOST:PORT"}}\' …'
        )
