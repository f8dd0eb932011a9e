"""The fields of a study file."""

import re
from typing import Annotated

from pydantic import Field

from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError
from tune_speed.core.folders import STUDY_NAME
from tune_speed.study import settings
from tune_speed.study.mistake import shown
from tune_speed.study.replication import ReplicationConfig, Scale
from tune_speed.study.short_forms import GoalConfig
from tune_speed.training.recipe import Recipe
from tune_speed.training.workload import Workload


def check_study_name(name: str) -> None:
    """Refuses a name that a folder cannot safely have. Raises: ConfigError."""
    if not re.fullmatch(STUDY_NAME, name):
        raise ConfigError.of("study", f"must match {STUDY_NAME}", given=shown(name))


class StudySchema(Config):
    """What must be reached, what may vary, and how to search."""

    study: Annotated[str, Field(pattern=STUDY_NAME)] | None = None
    """Name of the study; null: the file's name without its ending."""
    workload: Workload
    """What must be reached: a mapping, or the name of a built-in workload."""
    goal: GoalConfig | None = None
    """The best value of a metric within a training time, in place of a target."""
    recipe: Recipe
    """How to train; any value in it may be searched."""
    search: settings.SearchConfig | None = None
    """How the space is searched."""
    certify: settings.CertifyConfig | None = None
    """How the best trials are run again on fresh seeds; null: they are not."""
    tracking: settings.TrackingConfig | None = None
    """What is stored in MLflow other than measurements; null: nothing."""
    run: settings.RunConfig | None = None
    """How a single training is run."""
    ablate: settings.AblateConfig | None = None
    """What `tune-speed ablate` changes about the recipe."""
    replication: ReplicationConfig | None = None
    """Of a replication: which experiment it is, and our figures next to its own."""
    scale: Scale | None = None
    """Smaller profiles of a replication, by name, such as `cpu`."""
