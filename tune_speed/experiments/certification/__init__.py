"""Certification: the fastest trials of a study run again, with fresh seeds, alone on the device.

`certify` runs a certification: `finalists` chooses who takes part, `schedule` who runs next, and
`elimination` who is dropped early. Every run is in the `ledger` before the next begins. `assemble`
makes certified records with their `Certificate`s, and `report` shows them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_speed.experiments.certification.certificate import Certificate
    from tune_speed.experiments.certification.certify import CertifyResult
    from tune_speed.experiments.certification.elimination import Elimination
    from tune_speed.experiments.certification.report import certification_text

__all__ = ["Certificate", "CertifyResult", "Elimination", "certification_text"]

_MODULES = {
    "Certificate": "certificate",
    "CertifyResult": "certify",
    "Elimination": "elimination",
    "certification_text": "report",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: plugins and MLflow take seconds."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
