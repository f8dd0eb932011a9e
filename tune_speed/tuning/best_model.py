"""Logs the model of a search's fastest trial in MLflow, when the search has ended."""

# Not before: drawing a network's graph takes some ten seconds of a core, which would slow trials
# that are being timed. In a process of its own no error or crash can take the results along.

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
from tune_speed.core.text import switch
from tune_speed.tracking.store.store import Store
from tune_speed.tracking.store.uri import strip_secrets
from tune_speed.tracking.writer.models import MODEL, forget_others, run_of_trial
from tune_speed.tuning.driver.trial_files import weights_file

TIMEOUT_S = 600.0

_log = logging.getLogger(__name__)


def log_best_model(
    store: Store, *, records: Iterable[TrialRecord], folder: Path, parent_id: str
) -> str:
    best = fastest(records)
    if best is None:
        return "no model is logged: no trial met the target"
    if best.is_own_loop:
        return "no model is logged: a training function's models are its own affair"
    no_model = f"the model of {best.trial_id} is not logged"
    run = run_of_trial(store, parent_id, best.trial_id)
    if run is None:
        return f"{no_model}: MLflow has not taken the trial yet; {switch('resume')} delivers both"
    if MODEL in run.data.tags:
        return f"the model of {best.trial_id} is logged: {run.data.tags[MODEL]}"
    weights = weights_file(folder, best.trial_id)
    if not weights.is_file():
        return (
            f"{no_model}: its weights must be in {weights}, but are not. The trial ran before"
            " log_model was set, or on a node that does not share this folder"
        )
    found = _log_in_subprocess(store, run.info.run_id, best, weights)
    if "uri" not in found:
        return f"{no_model}: {found['error']}"
    forget_others(store, parent_id, but=run.info.run_id)
    weights.unlink(missing_ok=True)
    return f"the model of {best.trial_id} is logged: {found['uri']}"


def main() -> None:
    """Reads a request of `log_best_model` from stdin and writes the answer to stdout."""
    import torch

    from tune_speed.runtime.device import set_up_process
    from tune_speed.training.saved_model import SavedModel

    request, device = json.load(sys.stdin), torch.device("cpu")
    receive(request["plugins"])
    try:
        set_up_process(device, cpu_threads=request["cpu_threads"])
        saved = SavedModel.read(Path(request["weights"]), device)
        answer = {"uri": saved.log(Store(request["uri"]), run_id=request["run_id"])}
    except Exception as error:  # Such as torch's, if it cannot draw the network's graph.
        traceback.print_exc()
        lines = str(error).strip().splitlines() or ["no message"]
        answer = {"error": f"{type(error).__name__}: {lines[0]}"}
    print(json.dumps(answer))


def _log_in_subprocess(
    store: Store, run_id: str, record: TrialRecord, weights: Path
) -> dict[str, Any]:
    request = {
        "uri": store.uri,
        "run_id": run_id,
        "cpu_threads": record.cpu_threads,
        "weights": str(weights),
        # As loaded in this process: a plugin's file may have changed since the search began.
        "plugins": shipped(),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tune_speed.tuning.best_model"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it took longer than {TIMEOUT_S:.0f} s"}
    said = {"error": f"the process that logs it ended with exit code {done.returncode}"}
    if done.returncode == 0:
        said = json.loads(done.stdout.strip().splitlines()[-1])
    if "error" in said:
        _log.warning("%s", strip_secrets(done.stderr))
        said["error"] = strip_secrets(said["error"])
    return said


if __name__ == "__main__":
    main()
