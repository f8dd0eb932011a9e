"""Memory of a GPU that each process takes outside torch's allocator: its CUDA context."""

import subprocess
import sys
from contextlib import suppress
from functools import cache

import torch

from tune_speed.core.folders import default_cache_dir
from tune_speed.runtime.atomic_file import write_atomically
from tune_speed.runtime.file_lock import file_lock
from tune_speed.runtime.mps import find_mps

GIB = 1024**3
MEASURE_WITHIN_S = 120.0
"""A new process imports torch, and loads the kernels of a convolution and a matrix product."""
LARGEST_GIB = 4.0
# It prints what is free of the GPU beside its context, whose share torch's allocator can reuse.
PROBE = """
import sys, torch
device = torch.device("cuda", int(sys.argv[1]))
images, weights = torch.ones(8, 8, 8, 8, device=device), torch.ones(8, 8, 3, 3, device=device)
found = torch.nn.functional.conv2d(images, weights).flatten(1)
torch.mm(found, found.T).sum().item()
print(torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))
"""


@cache
def context_gib(device: torch.device) -> float:
    """Returns what a process on a GPU takes beside its tensors [GiB]; 0 where that is not known.

    Measured once a node for each GPU, torch and way of sharing, by a process that starts and ends
    meanwhile; others that begin wait for it. Raises: StorageError if the cache folder has no locks.
    """
    uuid = torch.cuda.get_device_properties(device).uuid
    folder = default_cache_dir() / "cuda_context"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{uuid}-torch-{torch.__version__}-{find_mps().sharing.replace(' ', '-')}"
    with file_lock(file.with_name(f"{file.name}.lock"), wait_s=MEASURE_WITHIN_S):
        found: float | None = None
        with suppress(OSError, ValueError):
            found = float(file.read_text())
        if found is None and (found := _measured(device)) is not None:
            with write_atomically(file) as written:
                written.write(f"{found:.4f}".encode())
    return found or 0.0


def _measured(device: torch.device) -> float | None:
    try:
        free_bytes, _ = torch.cuda.mem_get_info(device)
        command = [sys.executable, "-c", PROBE, str(device.index)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=MEASURE_WITHIN_S, check=True
        )
        taken_gib = (free_bytes - int(done.stdout)) / GIB
    except (OSError, ValueError, RuntimeError, subprocess.SubprocessError):
        return None
    # A neighbour that allocates or ends meanwhile would be part of it.
    return taken_gib if 0 < taken_gib < LARGEST_GIB else None
