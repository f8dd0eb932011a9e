"""Compiles models with `torch.compile`, and keeps what it makes for the next trial.

**In a process**, a model of the same make as the one before runs what was compiled for that one.
Torch sees to it that this is right: weights and statistics are inputs of what it compiles, and
whatever else it took for constant is a guard that is checked at each call. What fails is compiled
anew. All is forgotten, and its memory freed, when a model of another make comes, when much has
piled up, and always in modes that record CUDA graphs, which hold addresses of one model's weights.

**On disk**, inductor keeps what it generates under a hash of the graph, the shapes, its settings
and the number of threads; the next process with the same graph reads it. We say where: in a folder
of this node's and this user's own, beside the decoded data (`TUNE_SPEED_CACHE`). By default it
would be /tmp/torchinductor_USER, where whoever comes first on a shared machine could leave code for
others to run, and where files may vanish. We remove nothing there.

Processes that compile at the same time share that folder. What makes it safe: entries are named by
the hash of what they hold, written under another name and then renamed; half-written files are
passed over by those who read (in torch since its pull request 172144). Triton's kernels lie in a
folder for each device beneath as long as TRITON_CACHE_DIR is not set, so we leave it alone (with
all in one place, several processes met in one file: torch's issue 153791).
"""

import os
import platform
from pathlib import Path

import torch
from torch import nn

from tune_speed.core.folders import default_cache_dir
from tune_speed.training.step.gradient import Forward

FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""The variable of torch's for where it keeps what it compiles. What the user sets holds."""
WITHOUT_CUDA_GRAPHS = ("default", "max-autotune-no-cudagraphs")
"""Modes in which a model may run what another one's weights were compiled with."""
MOST_GRAPHS = 8
"""So many graphs may be there when the next model comes; with more, all are forgotten."""
RECOMPILE_LIMIT = 64
"""Shapes of one function that are compiled; any further one would run uncompiled. Torch's own limit
is 8, of which earlier trials would have used some."""


class _Compiled:
    """What this process has compiled since it last forgot all."""

    key: str | None = None
    num_graphs_before = 0


def compiled(model: nn.Module, *, mode: str = "default") -> Forward:
    """Returns the model's compiled forward; it is compiled at its first call with each shape.

    Args:
        model: on its device, with its weights; the forward shares them.
        mode: of `torch.compile`, such as `default`, `reduce-overhead` or `max-autotune`.
    """
    keep_on_disk(default_cache_dir())
    key = _key(model, mode)
    if key != _Compiled.key or mode not in WITHOUT_CUDA_GRAPHS or not _has_few_graphs():
        torch.compiler.reset()
        _Compiled.key, _Compiled.num_graphs_before = key, _num_graphs()
    forward: Forward = torch.compile(model, dynamic=False, mode=mode)
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    return forward


def keep_on_disk(cache_dir: Path) -> None:
    """Has torch keep what it compiles in a folder of `cache_dir`, unless it knows another place.

    Where the folder cannot be made, torch's own default stays: it is a cache.
    """
    if os.environ.get(FOLDER):
        return
    folder = cache_dir / "compiled" / platform.node() / f"torch-{torch.__version__}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return
    os.environ[FOLDER] = str(folder)


def _key(model: nn.Module, mode: str) -> str:
    """Returns what models have in common that may run the same code, as far as one can tell.

    The number of threads is part of it: code for a CPU is made for that number.
    """
    kinds = [f"{type(module).__module__}.{type(module).__qualname__}" for module in model.modules()]
    tensors = [
        (name, tuple(tensor.shape), str(tensor.dtype), tensor.stride(), str(tensor.device))
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]
    return repr((mode, torch.get_num_threads(), str(model), kinds, tensors))


def _has_few_graphs() -> bool:
    return 0 <= _num_graphs() - _Compiled.num_graphs_before <= MOST_GRAPHS


def _num_graphs() -> int:
    """Returns how many graphs this process has compiled."""
    from torch._dynamo.utils import counters  # Late: it takes 1.6 s to import.

    return int(counters["stats"]["unique_graphs"])
