"""Records of finished trials as a driver keeps them: some kilobytes each, unpacked when asked for.

As an object a record with its curve takes ten times as much, and a search of thousands of trials
looks at all of them only as it begins and ends.
"""

import zlib
from collections.abc import Iterator, Mapping

from tune_speed.core.records import TrialRecord

LEVEL = 1
"""Of zlib: more saves little, and takes longer."""


class PackedRecords(Mapping[str, TrialRecord]):
    """Records by trial id, in the order in which they came."""

    def __init__(self) -> None:
        """Holds nothing yet."""
        self._packed: dict[str, bytes] = {}

    def add(self, record: TrialRecord) -> None:
        """Keeps a record; one of the same trial is replaced."""
        data = record.model_dump_json().encode()
        self._packed[record.trial_id] = zlib.compress(data, LEVEL)

    def __getitem__(self, trial_id: str) -> TrialRecord:
        """Returns an equal record, made anew. Raises: KeyError."""
        return TrialRecord.model_validate_json(zlib.decompress(self._packed[trial_id]))

    def __contains__(self, trial_id: object) -> bool:
        return trial_id in self._packed

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)
