"""What the table's filter knows of its trials: the fields of `--where`, and their values."""

import json
import math
from collections.abc import Sequence
from typing import Any

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import TrialRecord
from tune_speed.tracking.columns import COLUMNS
from tune_speed.tracking.filter.fields import FieldReader


def fields_of(records: Sequence[TrialRecord]) -> str:
    """Returns what a page's filter reads, as JSON.

    `same` has the values that all records share by name, `rows` the others in the records' order;
    `columns` says of each result whether it is a number, or which texts it can be; `unclear` has
    why a name cannot be asked for, such as the last part of several settings.
    """
    readers = [FieldReader(record) for record in records]
    same, rows, unclear = dict[str, Any](), dict[str, list[Any]](), dict[str, str]()
    for name in sorted(set().union(*(reader.names() for reader in readers))):
        try:
            values = [_plain(reader.value(name)) for reader in readers]
        except ConfigError as error:
            unclear[name] = str(error)
            continue
        # Most settings are alike in all trials: written once they take little room.
        if all(value == values[0] and type(value) is type(values[0]) for value in values):
            same[name] = values[0]
        else:
            rows[name] = values
    columns = {name: True if c.is_number else list(c.among) for name, c in COLUMNS.items()}
    facts = {"same": same, "rows": rows, "columns": columns, "unclear": unclear}
    return json.dumps(facts, separators=(",", ":"), default=str)


def _plain(value: Any) -> Any:
    """Returns the value as JSON has it, which knows no infinity: there such a number is absent."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
