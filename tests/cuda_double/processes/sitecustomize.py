"""Gives every Python process with this folder on PYTHONPATH the GPUs of `cuda_double`.

The command and Ray's workers inherit the variable. They get them when torch is imported.
"""

import os
import sys
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parents[2]
sys.path.append(str(TESTS))

from helpers.after_import import after_import  # noqa: E402


def _add_gpus(torch: ModuleType) -> None:
    from cuda_double import double

    double.install(double.Driver(memory_gib=float(os.environ["CUDA_DOUBLE_GIB"])))


after_import("torch", _add_gpus)
