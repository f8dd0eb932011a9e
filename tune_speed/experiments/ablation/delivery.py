"""Delivers the runs of an ablation to MLflow, as the trials of a study of its own."""

from collections.abc import Sequence
from importlib.util import find_spec

from tune_speed.core.errors import ServiceError, StorageError
from tune_speed.core.records import PROTOCOL_VERSION, TrialRecord

# Longest wait for the store at the end [s]; what it has not taken is in the ledger.
DELIVERY_S = 60.0


def deliver(records: Sequence[TrialRecord], *, study: str) -> tuple[str, ...]:
    """Returns lines on what MLflow did not take; the ledger has it, and the same command delivers.

    Without MLflow nothing is delivered: an ablation runs where it is not installed.
    """
    if not records:
        return ()
    # An ablation runs where MLflow is not installed, so that this is no error.
    if find_spec("mlflow") is None:
        return ("MLflow is not installed: the runs are in the ledger only",)
    from tune_speed.tracking.store.store import open_store
    from tune_speed.tracking.store.uri import strip_secrets, tracking_uri
    from tune_speed.tracking.writer.tracker import Tracker, names_of

    uri = tracking_uri()
    tags = {
        "workload": records[0].workload_name,
        "workload_hash": records[0].workload_hash,
        "protocol_version": str(PROTOCOL_VERSION),
    }
    try:
        tracker = Tracker(open_store(uri), study=study, study_tags=tags, search_id=study)
        tracker.reconcile(records)
        missing = tracker.close(timeout_s=DELIVERY_S)
    except (ServiceError, StorageError) as error:
        return (f"warning: MLflow has not got the runs; the same command delivers them: {error}",)
    if not missing:
        return ()
    named = f"{names_of(missing)} ({missing[0].reason})"
    return (
        f"warning: MLflow at {strip_secrets(uri)} has not taken {named}; the same command delivers"
        " them",
    )
