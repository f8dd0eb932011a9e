"""Runs a target under atheris, which is no dependency of the project: `pip install atheris`.

mkdir -p corpus
python tests/fuzz/fuzz_run.py read_yaml -max_total_time=240 -rss_limit_mb=4096 corpus

takes libFuzzer's options and folders of inputs; the first one is filled where it is empty.
"""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

MODULES = {
    "read_yaml": ("study.yaml", "/yaml.scanner", "/yaml.parser", "/yaml.reader"),
    "read_study": ("study.yaml", "study", "core.config", "core.errors", "/yaml"),
    "read_filter": ("tracking.filter.where", "tracking.filter.fields"),
    "read_tags": ("tracking.schema",),
    "read_ledger": (
        "core.event_log",
        "core.records",
        "tuning.driver.ledger",
        "tuning.driver.prior_trials",
    ),
    "read_checkpoint": (
        "training.checkpoint.checkpoints",
        "training.checkpoint.store",
        "/torch._weights_only_unpickler",
        "/torch.serialization",
    ),
}
"""Whose branches guide the fuzzing: modules of ours, and with a slash of others, by the target."""


def seeds(target: str) -> list[bytes]:
    """Returns the inputs to begin with."""
    import fuzz_targets

    if target == "read_ledger":
        return list(fuzz_targets.ledgers())
    if target == "read_checkpoint":
        state = fuzz_targets.saved_state()
        return [state, fuzz_targets.whole_checkpoint(state)]
    studies = fuzz_targets.STUDIES
    texts = {"read_filter": fuzz_targets.FILTERS, "read_tags": fuzz_targets.TAGS.values()}
    return [text.encode() for text in texts.get(target, studies)]


def fuzz(target: str) -> None:
    """Fuzzes a function of `fuzz_targets` until libFuzzer's options end it, or a finding does."""
    import atheris

    modules = [m[1:] if m.startswith("/") else f"tune_speed.{m}" for m in MODULES[target]]
    with atheris.instrument_imports(include=modules):
        for module in modules:
            importlib.import_module(module)
        import fuzz_targets

    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    if folders and not any(folders[0].iterdir()):
        for number, seed in enumerate(seeds(target)):
            (folders[0] / f"seed-{number}").write_bytes(seed)
    atheris.Setup(sys.argv, getattr(fuzz_targets, target))
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz(sys.argv.pop(1))
