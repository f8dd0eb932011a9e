"""The version of this package, and of others: one place for what is shown and recorded."""

from importlib import metadata

__version__ = "0.1.0"


def installed_version(package: str) -> str | None:
    """Returns the version of an installed distribution, or None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
