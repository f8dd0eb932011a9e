"""All that a study file is checked for, under atheris:

mkdir -p corpus
python tests/fuzz/fuzz_study.py -max_total_time=240 -rss_limit_mb=4096 corpus
"""

from collections.abc import Iterable

from fuzz_run import fuzz


def seeds() -> Iterable[bytes]:
    """Returns the inputs to begin with."""
    import fuzz_targets

    return [text.encode() for text in fuzz_targets.STUDIES]


if __name__ == "__main__":
    fuzz(
        "read_study",
        modules=[
            "tune_speed.study.yaml",
            "tune_speed.study",
            "tune_speed.core.config",
            "tune_speed.core.errors",
            "yaml",
        ],
        seeds=seeds,
    )
