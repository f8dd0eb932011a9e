"""Moments as records tell them. Those of another's store may say anything."""

from datetime import UTC, datetime


def moment_of(text: str) -> datetime | None:
    """Returns the moment that `text` says in ISO 8601, in UTC; None if it says none.

    One without a time zone is taken for UTC.
    """
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def moment_s(text: str) -> float:
    """Returns the seconds since 1970 of a moment; 0.0 if `text` says none, which is long ago."""
    moment = moment_of(text)
    return 0.0 if moment is None else moment.timestamp()
