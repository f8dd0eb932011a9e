"""The readers of ledgers under atheris:

mkdir -p corpus
python tests/fuzz/fuzz_ledger.py -max_total_time=240 -rss_limit_mb=4096 corpus
"""

from collections.abc import Iterable

from fuzz_run import fuzz


def seeds() -> Iterable[bytes]:
    """Returns the inputs to begin with."""
    import fuzz_targets

    return fuzz_targets.ledgers()


if __name__ == "__main__":
    fuzz(
        "read_ledger",
        modules=[
            "tune_speed.core.event_log",
            "tune_speed.core.records",
            "tune_speed.tuning.driver.ledger",
            "tune_speed.tuning.driver.prior_trials",
        ],
        seeds=seeds,
    )
