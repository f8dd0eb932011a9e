"""Where studies keep their files."""

import os
from pathlib import Path


def studies_folder() -> Path:
    """Returns where studies keep their ledgers: $TUNE_SPEED_STUDIES or ./tune_speed_studies."""
    return Path(os.environ.get("TUNE_SPEED_STUDIES", "tune_speed_studies")).absolute()
