"""Prints what `pip install tune_speed[EXTRA]` would install besides the package itself.

So the layer of dependencies stays as it is when only our source has changed.

    python requirements.py pyproject.toml cluster > requirements.txt
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, extra: str) -> list[str]:
    """Returns the requirements of the project and of one of its extras."""
    project = tomllib.loads(pyproject)["project"]
    return [*project["dependencies"], *project["optional-dependencies"][extra]]


if __name__ == "__main__":
    file, extra = sys.argv[1:]
    print("\n".join(requirements(Path(file).read_text(), extra)))
