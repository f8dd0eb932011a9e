"""The reader of filters (`--where`) under atheris:

mkdir -p corpus
python tests/fuzz/fuzz_where.py -max_total_time=240 -rss_limit_mb=4096 corpus
"""

from collections.abc import Iterable

from fuzz_run import fuzz


def seeds() -> Iterable[bytes]:
    """Returns the inputs to begin with."""
    import fuzz_targets

    return [text.encode() for text in fuzz_targets.FILTERS]


if __name__ == "__main__":
    fuzz(
        "read_filter",
        modules=[
            "tune_speed.tracking.filter.where",
            "tune_speed.tracking.filter.fields",
        ],
        seeds=seeds,
    )
