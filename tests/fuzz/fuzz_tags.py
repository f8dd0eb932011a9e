"""The readers of MLflow's tags under atheris:

mkdir -p corpus
python tests/fuzz/fuzz_tags.py -max_total_time=240 -rss_limit_mb=4096 corpus
"""

from collections.abc import Iterable

from fuzz_run import fuzz


def seeds() -> Iterable[bytes]:
    """Returns the inputs to begin with."""
    import fuzz_targets

    return [text.encode() for text in fuzz_targets.TAGS.values()]


if __name__ == "__main__":
    fuzz("read_tags", modules=["tune_speed.tracking.schema"], seeds=seeds)
