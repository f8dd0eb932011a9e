"""The version of this package: one place for `tune_speed.__version__` and for what is recorded."""

__version__ = "0.1.0"
