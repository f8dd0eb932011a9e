"""The checkpoint reader under atheris:

mkdir -p corpus
python tests/fuzz/fuzz_checkpoint.py -max_total_time=240 -rss_limit_mb=4096 corpus
"""

from collections.abc import Iterable

from fuzz_run import fuzz


def seeds() -> Iterable[bytes]:
    """Returns the inputs to begin with."""
    import fuzz_targets

    return [fuzz_targets.saved_state(), fuzz_targets.whole_checkpoint(fuzz_targets.saved_state())]


if __name__ == "__main__":
    fuzz(
        "read_checkpoint",
        modules=[
            "tune_speed.training.checkpoint.checkpoints",
            "tune_speed.training.checkpoint.store",
            "torch._weights_only_unpickler",
            "torch.serialization",
        ],
        seeds=seeds,
    )
