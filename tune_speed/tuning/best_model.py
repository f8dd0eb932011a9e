"""The model of a search's fastest trial, logged in MLflow when the search has ended.

Not before: drawing a network's graph takes some ten seconds of a core, which trials that are being
timed would feel. It is done in a process of its own, so that a search's driver needs no torch, and
nothing that goes wrong there takes the search's results along.
"""

import json
import logging
import subprocess
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tune_speed.components.plugins.registry import receive, shipped
from tune_speed.core.comparability import fastest
from tune_speed.core.records import TrialRecord
from tune_speed.tracking.store.errors import errors_of
from tune_speed.tracking.store.store import open_store
from tune_speed.tracking.store.uri import strip_secrets
from tune_speed.tracking.writer.models import MODEL, forget_others, log_model, run_of_trial
from tune_speed.tuning.driver.best_weights import weights_file

TIMEOUT_S = 600.0
"""Longest time for rebuilding, evaluating and logging a model."""

_log = logging.getLogger(__name__)


def log_best_model(
    client: Any, *, records: Iterable[TrialRecord], folder: Path, parent_id: str
) -> str:
    """Logs the model of the fastest of `records`, and returns what came of it, as a line to read.

    Args:
        client: of MLflow's store, in which the records are.
        records: of the search.
        folder: of the study.
        parent_id: run of the search.

    Raises: ServiceError or StorageError where the store does not answer.
    """
    best = fastest(records)
    if best is None:
        return "no model is logged: no trial met the target"
    if best.is_own_loop:
        return "no model is logged: a training function's models are its own affair"
    no_model = f"the model of {best.trial_id} is not logged"
    with errors_of(client.tracking_uri):
        run = run_of_trial(client, parent_id, best.trial_id)
        if run is None:
            return f"{no_model}: MLflow has not taken the trial yet; --resume delivers both"
        if MODEL in run.data.tags:
            return f"the model of {best.trial_id} is logged: {run.data.tags[MODEL]}"
        weights = weights_file(folder, best.trial_id)
        if not weights.is_file():
            return (
                f"{no_model}: its weights must be in {weights}, but are not. The trial ran before"
                " log_model was set, or on a node that does not share this folder"
            )
        said = _log_apart(str(client.tracking_uri), run.info.run_id, best, weights)
        if "uri" not in said:
            return f"{no_model}: {said['error']}"
        forget_others(client, parent_id, but=run.info.run_id)
    weights.unlink(missing_ok=True)
    return _found(best, said)


def main() -> None:
    """Does in a process of its own what `log_best_model` asks for on stdin; answers on stdout."""
    asked = json.load(sys.stdin)
    receive(asked["plugins"])
    record = TrialRecord.model_validate(asked["record"])
    try:
        answer = _log_here(asked["uri"], asked["run_id"], record, Path(asked["weights"]))
    except Exception as error:  # Such as torch's, if it cannot draw the network's graph.
        traceback.print_exc()
        lines = str(error).strip().splitlines() or ["no message"]
        answer = {"error": f"{type(error).__name__}: {lines[0]}"}
    print(json.dumps(answer))


def _log_apart(uri: str, run_id: str, record: TrialRecord, weights: Path) -> dict[str, Any]:
    """Returns the new model's address and accuracy, or an `error` in words."""
    asked = {"uri": uri, "run_id": run_id, "record": record.model_dump(mode="json")}
    # As they are here: a file may have changed since the search began.
    asked["plugins"] = shipped()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tune_speed.tuning.best_model"],
            input=json.dumps({**asked, "weights": str(weights)}),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it took longer than {TIMEOUT_S:.0f} s"}
    if done.returncode != 0:
        _log.warning("%s", strip_secrets(done.stderr))
        return {"error": f"the process that logs it ended with exit code {done.returncode}"}
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if "error" in said:
        _log.warning("%s", strip_secrets(done.stderr))
        said["error"] = strip_secrets(said["error"])
    return said


def _log_here(uri: str, run_id: str, record: TrialRecord, weights: Path) -> dict[str, Any]:
    import torch

    from tune_speed.runtime.device import set_up_process
    from tune_speed.training.finished_model import accuracy_of, finished_model
    from tune_speed.training.objective import load_splits
    from tune_speed.training.workload import Workload

    device = torch.device("cpu")
    set_up_process(device, cpu_threads=record.cpu_threads)
    workload = Workload.model_validate(record.workload)
    splits = load_splits(workload)
    model = finished_model(record, weights, splits)
    part = splits.validation if record.evaluated_on == "validation" else splits.test
    accuracy = accuracy_of(model, part, batch_size=workload.eval_batch_size, device=device)
    height, width, channels = part.pixels.shape[1:]
    model_uri = log_model(
        open_store(uri),
        model,
        run_id=run_id,
        accuracy=accuracy,
        part=record.evaluated_on,
        image_shape=(channels, height, width),
        num_classes=splits.num_classes,
    )
    return {"uri": model_uri, "accuracy": accuracy}


def _found(best: TrialRecord, said: dict[str, Any]) -> str:
    final = best.runs[-1].final
    assert final is not None and final.accuracy is not None
    line = f"the model of {best.trial_id} is logged: {said['uri']}, accuracy {said['accuracy']:.4f}"
    if said["accuracy"] == final.accuracy:
        return line
    return f"{line} on this machine's CPU, {final.accuracy:.4f} in the trial on {best.device}"


if __name__ == "__main__":
    main()
