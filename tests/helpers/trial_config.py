"""What Ray gives a process of trials to run one."""

from pathlib import Path
from typing import Any

from tune_speed.study.settings import ResourceConfig
from tune_speed.training.trial import TrialSpec


def config_of(spec: TrialSpec, folder: Path, **changes: Any) -> dict[str, Any]:
    """Returns the configuration of a trial that is on one device of this machine."""
    return {
        "spec": spec.model_dump_json(),
        "devices": 1,
        "resources": ResourceConfig().model_dump_json(),
        "folder": str(folder),
        "stop_after_s": None,
        "hang_after_s": 600.0,
        "heartbeat_s": 0.2,
        "report_every_s": 0.05,
        **changes,
    }
