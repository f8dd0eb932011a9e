"""Colours by role, in light and in dark, and the marks that show a trial's status without them.

A figure is drawn once. As SVG it has sentinels for colours, which become CSS custom properties
(`var(--ink)`), so that the page decides; as PNG it has the light ones.

The series are Okabe and Ito's hues, moved until each has a contrast of 3 on its surface and every
two of them stay apart for colour-blind readers (Machado et al. 2009, DOI 10.1109/TVCG.2009.113).
"""

from collections.abc import Mapping
from typing import NamedTuple

from tune_speed.core.records import Status

Palette = Mapping[str, str]
"""Role to colour, `#rrggbb`."""

# Each series has a contrast of 3 on its surface, and colour-blind readers can tell any two apart.
_COLOURS = {
    "ink": ("#1b1f24", "#e9edf1"),
    "muted": ("#59636e", "#9aa5b1"),
    "grid": ("#dde1e6", "#2e353d"),
    "surface": ("#ffffff", "#14181d"),
    "s1": ("#0b5cc4", "#2f95ff"),
    "s2": ("#c43302", "#f2581e"),
    "s3": ("#00594f", "#17897a"),
    "s4": ("#c95fbd", "#dd93d6"),
    "s5": ("#b08410", "#f5a81c"),
    "s6": ("#2b96e3", "#c2dcfa"),
    "s7": ("#6e2a08", "#f7e08a"),
    "s8": ("#1b1f24", "#f2f4f7"),
}
LIGHT: Palette = {role: light for role, (light, _) in _COLOURS.items()}
DARK: Palette = {role: dark for role, (_, dark) in _COLOURS.items()}
# Stand for the roles in an SVG that is being made; one colour a role, none of them of a theme.
SENTINELS: Palette = {role: f"#a1b2{number:02x}" for number, role in enumerate(LIGHT, start=1)}
SERIES = tuple(role for role in LIGHT if role.startswith("s") and role != "surface")
DASHES = ("-", "--", "-.", ":")


class Look(NamedTuple):
    """How a point is drawn."""

    marker: str
    role: str
    is_filled: bool
    area: float = 26.0
    """In square points."""


MET = "met target"
# Each status has a shape of its own, as not everybody can tell the colours apart.
_BY_STATUS: Mapping[Status, tuple[Look, str]] = {
    Status.REACHED: (Look("o", "s1", True), MET),
    Status.MISSED: (Look("s", "s2", False, 22.0), "missed"),
    Status.CAPPED: (Look("^", "s5", False), "ended early"),
    Status.OOM: (Look("D", "s4", False, 20.0), "out of memory"),
    Status.DIVERGED: (Look("v", "s3", False), "diverged"),
    Status.FAILED: (Look("X", "muted", False, 30.0), "failed"),
}
LOOKS = {status: look for status, (look, _) in _BY_STATUS.items()}
WORDS = {status: words for status, (_, words) in _BY_STATUS.items()}
