"""Where trials are going to run: asked of the cluster, as the driver may sit elsewhere."""

import ray

from tune_speed.errors import ServiceError
from tune_speed.search.earlier import Machine
from tune_speed.search.settings import ResourceConfig
from tune_speed.trial import Allotment

ANSWER_S = 120.0
"""Longest wait for a process that has imported torch on a busy node."""


def machine_of_trials(allotment: Allotment, *, resources: ResourceConfig) -> Machine:
    """Returns device and torch of a node that can run a trial; Ray must be connected.

    Where nodes differ it is one of them: trials on the others have clocks of their own.

    Raises: ServiceError if no node answers in time.
    """
    look = ray.remote(_look).options(num_cpus=resources.cpu, num_gpus=resources.gpu)
    try:
        device, torch = ray.get(
            look.remote(allotment.device, allotment.cpu_threads), timeout=ANSWER_S
        )
    except ray.exceptions.RayError as error:
        raise ServiceError(
            f"the cluster must run one process to name its device, but got: {error}. Wait until a"
            " node is free, or leave search.warm_start out."
        ) from error
    return Machine(device, torch)


def _look(device: str, cpu_threads: int) -> tuple[str, str]:
    from tune_speed.device import describe_device, resolve_device, set_up_process
    from tune_speed.trial import environment

    resolved = resolve_device(device)
    set_up_process(resolved, cpu_threads=cpu_threads)
    return describe_device(resolved), environment()["torch"]
