"""Compiles models with `torch.compile`; the next trial with the same network finds it compiled.

In a process by torch's own cache of code, across processes by inductor's cache on disk, which lies
next to the decoded data (`TUNE_SPEED_CACHE`), in a folder of this node's and this user's own.
"""

import os
import platform
from pathlib import Path

import torch
from torch import nn

from tune_speed.core.folders import default_cache_dir
from tune_speed.training.recipe import WITHOUT_GRAPHS
from tune_speed.training.step.gradient import Forward

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""Torch's variable for the folder of what it compiles. What the user sets holds."""
MOST_GRAPHS = 8
"""So many graphs may be there when the next model comes; with more, all are forgotten."""
# Shapes of one function that are compiled; any further one would run uncompiled.
RECOMPILE_LIMIT = 64


class _Compiled:
    """What this process has compiled since it last forgot all."""

    key: str | None = None
    num_graphs_before = 0


def compiled(model: nn.Module, *, mode: str = "default") -> Forward:
    """Returns the model's compiled forward; it is compiled at its first call with each shape.

    The model is on its device, and the forward shares its weights; `mode` is one of
    `torch.compile`, such as `default`, `reduce-overhead` or `max-autotune`.
    """
    keep_on_disk(default_cache_dir())
    key = _key(model, mode)
    # Weights and statistics are inputs of what torch compiles, and whatever else it took for
    # constant is a guard that each call checks: so a model of the same make may run what was
    # compiled for the one before. Recorded CUDA graphs hold addresses of one model's weights.
    num_new = _num_graphs() - _Compiled.num_graphs_before
    may_reuse = key == _Compiled.key and mode not in WITHOUT_GRAPHS
    if not may_reuse or not 0 <= num_new <= MOST_GRAPHS:
        torch.compiler.reset()
        _Compiled.key, _Compiled.num_graphs_before = key, _num_graphs()
    forward: Forward = torch.compile(model, dynamic=False, mode=mode)
    # Torch's own limit is 8, of which earlier trials would have used some.
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    return forward


def keep_on_disk(cache_dir: Path) -> None:
    """Has torch store what it compiles in a folder of `cache_dir`, unless it knows another place.

    Where the folder cannot be made, torch's own default stays: it is a cache.
    """
    # By default it is /tmp/torchinductor_USER, where whoever comes first on a shared machine could
    # leave code for others to run, and where files may vanish.
    #
    # Processes may share it: entries are named by the hash of what they hold and renamed into
    # place, and readers pass over half-written ones (since torch's pull request 172144). Triton's
    # kernels lie in a folder for each device beneath as long as TRITON_CACHE_DIR is not set, so it
    # is left alone: with all in one place, several processes met in one file (torch's issue
    # 153791).
    if os.environ.get(FOLDER):
        return
    folder = cache_dir / "compiled" / platform.node() / f"torch-{torch.__version__}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return
    os.environ[FOLDER] = str(folder)


def _key(model: nn.Module, mode: str) -> str:
    """Returns what models have in common that may run the same code, as far as one can tell."""
    kinds = [f"{type(module).__module__}.{type(module).__qualname__}" for module in model.modules()]
    tensors = [
        (name, tuple(tensor.shape), str(tensor.dtype), tensor.stride(), str(tensor.device))
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]
    # Code for a CPU is made for a number of threads.
    return repr((mode, torch.get_num_threads(), str(model), kinds, tensors))


def _num_graphs() -> int:
    """Returns how many graphs this process has compiled."""
    # Late: it takes 1.6 s to import.
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
