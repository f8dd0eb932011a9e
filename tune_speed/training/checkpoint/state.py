"""All that makes the rest of a run, as tensors and plain values, and a run made the same again.

| part         | of what                                              | of which rank         |
|--------------|------------------------------------------------------|-----------------------|
| `weights`    | parameters of the model                              | all have the same     |
| `buffers`    | batch statistics and the like                        | each its own          |
| `optimizer`  | its state, SWATS' switch and YellowFin's tuner too   | all have the same     |
| `scaler`     | the loss scale                                       | all have the same     |
| `averager`   | averaged weights, and how far they are               | rank 0, who evaluates |
| `speedups`   | draws of stochastic depth                            | each its own          |
| `random`     | torch's generators, on the CPU and on the device     | each its own          |
| `progress`   | counts, evaluations, losses, clocks, step times, …   | rank 0, who evaluates |
| `scores`     | of the images, where their order follows from them   | all have the same     |
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tune_speed.data.loaders.base import Loader
from tune_speed.training.accounts import ProgressState
from tune_speed.training.build import Job
from tune_speed.training.preparation import reorder
from tune_speed.training.progress import Progress
from tune_speed.training.step.step import Stepper

State = dict[str, Any]


@dataclass
class Training:
    """A run's moving parts, between two steps."""

    job: Job
    model: nn.Module
    loader: Loader
    stepper: Stepper
    progress: Progress
    scores: NDArray[np.float64] | None = None
    """How hard each image is, (N,), where the order follows from it."""


def state_of(training: Training) -> State:
    """Returns what `restore` needs; tensors are on the host. All ranks must call it at once."""
    job, stepper, progress = training.job, training.stepper, training.progress
    averager, scores = progress.evaluator.averager, training.scores
    is_cuda = job.device.type == "cuda"
    # What else sets a step is a function of the recipe, the seed and the step's number: rates,
    # shapes, the network's stage, batches and their augmentation. NumPy's and Python's own
    # generators are not seeded, and nothing in a run draws from them.
    shared = {
        "weights": dict(training.model.named_parameters()),
        "optimizer": _with_plain_rates(stepper.optimizer.state_dict()),
        "scaler": stepper.scaler.state_dict(),
        "averager": None if averager is None else averager.state(),
        "progress": progress.state().model_dump_json(),
        "scores": None if scores is None else torch.from_numpy(scores),
    }
    own = {
        "buffers": dict(training.model.named_buffers()),
        "speedups": job.recipe.speedups.state(training.model),
        "random": {
            "cpu": torch.get_rng_state(),
            "device": torch.cuda.get_rng_state(job.device) if is_cuda else None,
        },
        "loss_sum": progress.counts.loss_sum,
    }
    return {**_on_host(shared), "ranks": job.ranks.gather(_on_host(own))}


def progress_of(state: State) -> ProgressState:
    """Returns how far the saved run is. Raises: ValueError, KeyError, TypeError."""
    return ProgressState.model_validate_json(state["progress"])


def restore(training: Training, state: State) -> None:
    """Makes a run that was just set up the one that was saved.

    Raises: ValueError, KeyError, TypeError, RuntimeError and others, if the state is not of such a
        run, which must not continue then.
    """
    job, stepper, ours = training.job, training.stepper, training.progress
    own = state["ranks"][job.ranks.rank]
    if len(state["ranks"]) != job.ranks.size:
        raise ValueError(f"it is of {len(state['ranks'])} ranks, not of {job.ranks.size}")
    saved = progress_of(state)
    if not 0 < saved.steps < ours.total_steps or not saved.evaluations:
        raise ValueError(f"it is at step {saved.steps} of {ours.total_steps}")
    if saved.phases and saved.phases_by_shape().keys() != set(job.shapes):
        raise ValueError("its step times are of other steps")
    _copy_all(dict(training.model.named_parameters()), state["weights"])
    _copy_all(dict(training.model.named_buffers()), own["buffers"])
    stepper.optimizer.load_state_dict(state["optimizer"])
    # torch moves what belongs to a weight to where that is, and leaves the rest on the host.
    for name, value in list(stepper.optimizer.state.items()):
        if isinstance(name, str):
            stepper.optimizer.state[name] = _on_device(value, job.device)
    if stepper.scaler.is_enabled():
        stepper.scaler.load_state_dict(state["scaler"])
    if ours.evaluator.averager is not None:
        ours.evaluator.averager.restore(state["averager"])
    job.recipe.speedups.restore(training.model, own["speedups"])
    ours.resume(saved, loss_sum=own["loss_sum"])
    if state["scores"] is not None:
        training.scores = state["scores"].numpy()
        reorder(job, training.loader, training.scores)
    torch.set_rng_state(own["random"]["cpu"])
    if job.device.type == "cuda":
        torch.cuda.set_rng_state(own["random"]["device"], job.device)


def _with_plain_rates(state: State) -> State:
    groups = [{**group, "lr": float(group["lr"])} for group in state["param_groups"]]
    return {**state, "param_groups": groups}


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_host(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_on_host(each) for each in value)
    assert value is None or isinstance(value, bool | int | float | str | torch.dtype), type(value)
    return value


@torch.no_grad()
def _copy_all(ours: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    if ours.keys() != saved.keys():
        raise ValueError(f"its tensors are others: {sorted(ours.keys() ^ saved.keys())[:5]}")
    for name, tensor in ours.items():
        value = saved[name]
        if (value.shape, value.dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(f"{name} is {value.dtype} {tuple(value.shape)} in it")
        tensor.copy_(value)


def _on_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _on_device(each, device) for key, each in value.items()}
    return value
