"""Runs a target under atheris, which is no dependency of the project: `pip install atheris`.

Every harness takes libFuzzer's options and folders of inputs: `-max_total_time=240 CORPUS`.
"""

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))


def fuzz(target_name: str, *, modules: Iterable[str], seeds: Callable[[], Iterable[bytes]]) -> None:
    """Fuzzes a function of `fuzz_targets` until libFuzzer's options end it, or a finding does.

    Args:
        target_name: the function.
        modules: whose branches guide the fuzzing.
        seeds: gives the inputs to begin with, where the first folder named is empty.
    """
    import atheris

    with atheris.instrument_imports(include=list(modules)):
        for module in modules:
            importlib.import_module(module)
        import fuzz_targets

    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    if folders and not any(folders[0].iterdir()):
        for number, seed in enumerate(seeds()):
            (folders[0] / f"seed-{number}").write_bytes(seed)
    atheris.Setup(sys.argv, getattr(fuzz_targets, target_name))
    atheris.Fuzz()
