"""Certification: the fastest trials of a study run again, with fresh seeds, alone on the device.

`certify` runs a certification: `finalists` chooses who takes part, `schedule` who runs next, and
`elimination` who is dropped early. Every run is in the ledger before the next begins. `assemble`
makes certified records with their `Certificate`s, and `report` shows them.
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "certificate": ("Certificate",),
    "certify": ("CertifyResult",),
    "elimination": ("Elimination",),
    "report": ("certification_text",),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
