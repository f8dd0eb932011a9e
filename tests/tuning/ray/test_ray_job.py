from pathlib import Path

import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.tuning.admission import refuse_throw_away

JOB = "/tmp/ray/session_1/runtime_resources/working_dir_files/_ray_pkg_0123"


def test_results_in_the_working_directory_of_a_job_are_refused() -> None:
    with pytest.raises(ConfigError, match=f"got {JOB}/studies/tiny and sqlite:///{JOB}/mlflow.db"):
        refuse_throw_away(Path(f"{JOB}/studies/tiny"), f"sqlite:///{JOB}/mlflow.db")
    with pytest.raises(ConfigError, match="Set MLFLOW_TRACKING_URI: "):
        refuse_throw_away(Path("/shared/studies/tiny"), f"sqlite:///{JOB}/mlflow.db")


def test_results_anywhere_else_are_kept() -> None:
    refuse_throw_away(Path("/shared/studies/tiny"), "http://127.0.0.1:5000")
