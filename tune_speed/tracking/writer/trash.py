"""What a person changes about studies on record: one goes to the trash, a trial gets a note."""

from datetime import UTC, datetime

from tune_speed.tracking.store.errors import errors_of
from tune_speed.tracking.store.store import open_store


def discard_study(uri: str, experiment_id: str, study: str) -> str:
    """Moves a study to MLflow's trash; its name is free again. Returns its name there.

    `mlflow experiments restore` brings it back, `mlflow gc` removes it for good.

    Raises: ServiceError if the store does not answer.
    """
    client = open_store(uri, create=False)
    # MLflow keeps the names of what is in its trash taken.
    name = f"{study} (deleted {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ})"
    with errors_of(uri):
        client.rename_experiment(experiment_id, name)
        client.delete_experiment(experiment_id)
    return name
