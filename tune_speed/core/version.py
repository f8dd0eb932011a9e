"""The version of this package, and of others: one place for what is shown and recorded."""

__version__ = "0.1.0"


def installed_version(package: str) -> str | None:
    """Returns the version of an installed distribution, or None if it is not installed."""
    # 10 ms of the 130 that `--help` takes, which asks for no version.
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
