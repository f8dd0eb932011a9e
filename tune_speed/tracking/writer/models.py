"""Models in MLflow, one a search, saved as graphs that load without this package; the registry."""

from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tune_speed.runtime.file_lock import TemporaryFolder
from tune_speed.tracking import schema
from tune_speed.tracking.store.store import Store, runs_with
from tune_speed.tracking.writer import descriptions

MODEL = f"{schema.PREFIX}model"
"""Tag of a run whose model is logged: the model's address."""
NAME = "model"
EXPERIMENT = "saved-models"
"""Experiment of the models that are logged without a run."""
# Images of the example; with one alone, the graph would take no other number.
EXAMPLE_SIZE = 2


def run_of_trial(store: Store, parent_id: str, trial_id: str) -> Any | None:
    """Returns a trial's MLflow run, or None. Raises: ServiceError, StorageError."""
    wanted = {schema.PARENT: parent_id, schema.TRIAL_ID: trial_id}
    experiment = store.call(lambda client: _experiment(client, parent_id))
    return next(runs_with(store, [experiment], wanted), None)


class Card(NamedTuple):
    """What users of a logged model should know."""

    score: str
    part: str
    image_shape: tuple[int, ...]
    """(C, H, W), pixels as uint8."""
    num_classes: int


def log_model(store: Store, model: Any, card: Card, *, run_id: str | None) -> str:
    """Logs a model, on a trial's run if there is one, whose description then names it.

    The model takes pixels (N, C, H, W), on the CPU and in evaluation mode. Returns its address.

    Raises: MlflowException, or what torch raises if it cannot draw the model's graph.
    """
    client = store.create()
    from mlflow.entities import LoggedModelOutput

    experiment = (
        _experiment(client, run_id) if run_id else store.open_experiment(EXPERIMENT, tags={})
    )
    logged = client.create_logged_model(
        experiment, name=NAME, source_run_id=run_id, model_type="classifier"
    )
    try:
        with TemporaryFolder() as folder:
            path = folder / NAME
            _save(model, path, logged, run_id, card)
            client.log_model_artifacts(logged.model_id, str(path))
    except Exception:
        client.finalize_logged_model(logged.model_id, "FAILED")
        client.delete_logged_model(logged.model_id)
        raise
    client.finalize_logged_model(logged.model_id, "READY")
    uri = f"models:/{logged.model_id}"
    usage = descriptions.model_lines(uri, *card[:3])
    client.set_logged_model_tags(logged.model_id, {descriptions.NOTE: usage})
    if run_id is not None:
        client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
        before = client.get_run(run_id).data.tags.get(descriptions.NOTE, "")
        client.set_tag(run_id, descriptions.NOTE, f"{usage}\n\n{before}"[: schema.MAX_TAG])
        client.set_tag(run_id, MODEL, uri)
    return uri


def register(store: Store, uri: str, name: str) -> str:
    """Adds a logged model to the registry, as the newest version of `name`; returns its address.

    Raises: ServiceError.
    """

    def version_of(client: Any) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        # By its files: of a model's id MLflow would ask the process's own store, whichever it is.
        files = client.get_logged_model(uri.removeprefix("models:/")).artifact_location
        return client.create_model_version(name, source=files, tags={MODEL: uri})

    return f"models:/{name}/{store.call(version_of).version}"


def forget_others(store: Store, parent_id: str, *, but: str) -> None:
    """Deletes a search's models but that of the run `but`; files stay until `mlflow gc`.

    Raises: ServiceError, StorageError.
    """
    experiments = [store.call(lambda client: _experiment(client, parent_id))]
    own = runs_with(store, experiments, {schema.PARENT: parent_id}, also=f"tags.`{MODEL}` != ''")
    # All pages before the first change: a tag that is deleted would shift the later ones.
    others = [run for run in list(own) if run.info.run_id != but]

    def delete(client: Any) -> None:
        for run in others:
            client.delete_logged_model(run.data.tags[MODEL].removeprefix("models:/"))
            client.delete_tag(run.info.run_id, MODEL)

    store.call(delete)


def _experiment(client: Any, run_id: str) -> str:
    return str(client.get_run(run_id).info.experiment_id)


def _save(model: Any, path: Path, logged: Any, run_id: str | None, card: Card) -> None:
    import mlflow.pytorch
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    # Without the local part, such as `+cu128`, which no package index knows.
    versions = {name: metadata.version(name).split("+")[0] for name in ("mlflow", "torch", "numpy")}
    pixels = TensorSpec(np.dtype(np.uint8), (-1, *card.image_shape))
    logits = TensorSpec(np.dtype(np.float32), (-1, card.num_classes))
    mlflow.pytorch.save_model(
        model,
        str(path),
        mlflow_model=Model(
            artifact_path=logged.artifact_location, run_id=run_id, model_id=logged.model_id
        ),
        signature=ModelSignature(inputs=Schema([pixels]), outputs=Schema([logits])),
        input_example=np.zeros((EXAMPLE_SIZE, *card.image_shape), np.uint8),
        # Given, as MLflow would look for them in a process of its own.
        pip_requirements=[f"{name}=={version}" for name, version in versions.items()],
        serialization_format="pt2",
    )
