"""The YAML reader under atheris:

mkdir -p corpus
python tests/fuzz/fuzz_yaml.py -max_total_time=240 -rss_limit_mb=4096 corpus
"""

from collections.abc import Iterable

from fuzz_run import fuzz


def seeds() -> Iterable[bytes]:
    """Returns the inputs to begin with."""
    import fuzz_targets

    return [text.encode() for text in fuzz_targets.STUDIES]


if __name__ == "__main__":
    fuzz(
        "read_yaml",
        modules=["tune_speed.study.yaml", "yaml.scanner", "yaml.parser", "yaml.reader"],
        seeds=seeds,
    )
