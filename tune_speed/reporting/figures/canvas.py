"""A figure that is being drawn: its panels in house style, and the trials that its points are."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tune_speed.core.comparability import final_metric, target_of
from tune_speed.core.records import Status
from tune_speed.reporting.figures.facts import duration, name_of, score, tooltip
from tune_speed.reporting.study.view import StudyPart, ViewedTrial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection

Palette = Mapping[str, str]
"""Role to colour, `#rrggbb`."""

# In light and in dark. The series are Okabe and Ito's hues, moved until each has a contrast of 3 on
# its surface and any two stay apart for colour-blind readers (Machado et al. 2009, DOI
# 10.1109/TVCG.2009.113).
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
# Stand for the roles in an SVG that is being made, where they become CSS properties.
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


# Of a figure, in units of its SVG: a narrow phone's pixels, so that text stays readable there.
WIDTH = 360
# Of one that has a page's whole width; a phone scrolls it.
WIDE = 760
POINTS_PER_INCH = 72
# Size of text, in the same units.
TEXT = 11.0
NAME_WIDTH = 16
# Order of a text that covers lines but no points.
UNDER_POINTS = 2.5
# Scheme of the link to a trial until the SVG is finished.
MARK = "mark:"
LEGEND_LINE, LEGEND_ROW = 340.0, 16.0
# Points of one look in one panel; of more panels than so many, each has fewer.
MOST_POINTS, MOST_PANELS = 1000, 6
# Markers without an inside.
STROKES = "|_"
_CHARACTER = 6.3
# Widths of a legend's handles, in text heights.
_POINT, _LINE = 1.2, 2.0
_GAPS = 1.8 * TEXT


class Mark(NamedTuple):
    """The trial of a point."""

    run_id: str
    trial_id: str
    text: str
    is_leader: bool


class Spot(NamedTuple):
    """A point, in the units of its panel."""

    x: float
    y: float
    trial: ViewedTrial


class Canvas:
    """A figure of one column of panels, or a grid."""

    def __init__(
        self,
        palette: Palette,
        *,
        height: float,
        width: float = WIDTH,
        rows: int = 1,
        columns: int = 1,
        share_x: bool = False,
        heights: Sequence[float] = (),
        leader: ViewedTrial | None = None,
    ) -> None:
        """Takes units, without a legend; the keyboard reaches the points of `leader`."""
        # Matplotlib takes a second to import; a bare Figure draws without a window, by Agg.
        from matplotlib.figure import Figure

        size = (width / POINTS_PER_INCH, height / POINTS_PER_INCH)
        self.palette, self.leader, self.is_wide = palette, leader, width > WIDTH
        self.marks: list[Mark] = []
        self.every = 1
        """Of so many points of a panel at most, one is drawn."""
        self.figure = Figure(figsize=size, layout="constrained")
        panels = self.figure.subplots(
            rows, columns, squeeze=False, sharex=share_x, height_ratios=heights or None
        )
        self.panels: list[Axes] = list(panels.flat)

    @property
    def panel(self) -> "Axes":
        return self.panels[0]

    def grow(self, height: float) -> None:
        self.figure.set_figheight(self.figure.get_figheight() + height / POINTS_PER_INCH)

    def title(self, panel: "Axes", text: str) -> None:
        """Says above a panel what its upright axis is: a label next to it would take room."""
        panel.set_title(text, loc="left", fontsize=TEXT, color=self.palette["muted"])

    def points(
        self, panel: "Axes", spots: Sequence[Spot], look: Look, *, texts: Sequence[str] = ()
    ) -> None:
        """Draws linked points; of more than `MOST_POINTS` one in `every`, and the leader."""
        if not spots:
            return
        chosen = self._thinned([spot.trial for spot in spots])
        spots, texts = [spots[i] for i in chosen], [texts[i] for i in chosen if texts]
        # Not clipped, as misses lie on the edge of a panel and would be cut in half.
        drawn = panel.scatter(
            [spot.x for spot in spots],
            [spot.y for spot in spots],
            s=look.area,
            marker=look.marker,
            zorder=3,
            clip_on=False,
            **self._ink(look),
        )
        drawn.set_urls(self._marked([spot.trial for spot in spots], texts))

    def lines(
        self,
        panel: "Axes",
        paths: Sequence[Sequence[tuple[float, float]]],
        trials: Sequence[ViewedTrial],
        *,
        role: str,
        width: float,
    ) -> "LineCollection | None":
        """Draws a line for each trial, as `points` does; returns its entry of a legend."""
        from matplotlib.collections import LineCollection

        if not trials:
            return None
        chosen = self._thinned(trials)
        colour = self.palette[role]
        drawn = LineCollection([paths[i] for i in chosen], colors=colour, linewidths=width)
        drawn.set_urls(self._marked([trials[i] for i in chosen], ()))
        panel.add_collection(drawn)
        return drawn

    def _thinned(self, trials: Sequence[ViewedTrial]) -> list[int]:
        # A browser takes seconds to move a page of 100,000 of them, whatever the number of panels.
        every = -(-len(trials) * max(1, len(self.panels) // MOST_PANELS) // MOST_POINTS)
        self.every = max(self.every, every)
        return [i for i, t in enumerate(trials) if i % every == 0 or t is self.leader]

    def _marked(self, trials: Sequence[ViewedTrial], texts: Sequence[str]) -> list[str]:
        tips = texts or [tooltip(trial.record) for trial in trials]
        first = len(self.marks)
        self.marks += [
            Mark(trial.run_id, trial.record.trial_id, text, trial is self.leader)
            for trial, text in zip(trials, tips, strict=True)
        ]
        return [f"{MARK}{number}" for number in range(first, len(self.marks))]

    def name(self, panel: "Axes", spot: Spot, *, left_from: float = 0.5) -> None:
        """Writes a trial's id and result by its point; on its left from that share of width on."""
        record, text = spot.trial.record, name_of(spot.trial, NAME_WIDTH)
        time_s, metric = record.time_to_target_s, final_metric(record)
        place = panel.transLimits.transform(panel.transScale.transform((spot.x, spot.y)))
        if self._is_best and metric is not None:
            text = f"{text}: {score(metric)}"
        elif time_s is not None:
            text = f"{text}: {duration(time_s)}"
        self.label(panel, text, (spot.x, spot.y), is_left=place[0] > left_from, offset=(3, 8))

    @property
    def _is_best(self) -> bool:
        leader = self.leader
        return leader is not None and target_of(leader.record.workload).seeks_best

    def label(
        self,
        panel: "Axes",
        text: str,
        at: tuple[float, float],
        *,
        is_left: bool,
        offset: tuple[float, float],
        **settings: Any,
    ) -> None:
        panel.annotate(
            text,
            at,
            xytext=(-offset[0] if is_left else offset[0], offset[1]),
            textcoords="offset points",
            ha="right" if is_left else "left",
            bbox={"facecolor": self.palette["surface"], "edgecolor": "none", "pad": 0.0},
            zorder=UNDER_POINTS,
            **settings,
        )

    def entries(self, looks: Mapping[str, Look]) -> list[tuple[Any, str]]:
        from matplotlib.lines import Line2D

        return [
            (
                Line2D(
                    [],
                    [],
                    linestyle="none",
                    marker=look.marker,
                    markersize=math.sqrt(look.area) + 0.5,
                    markerfacecolor=self.palette[look.role if look.is_filled else "surface"],
                    markeredgecolor=self.palette[look.role],
                ),
                words,
            )
            for words, look in looks.items()
        ]

    def legend(self, entries: Sequence[tuple[Any, str]]) -> None:
        if not entries:
            return
        handles, labels = [handle for handle, _ in entries], [label for _, label in entries]
        if self._is_best:
            labels = [label.replace(MET, "ended in time") for label in labels]
        has_lines = any(
            getattr(h, "get_linestyle", str)() not in ("", "none", "None") for h in handles
        )
        handle_length = _LINE if has_lines else _POINT
        longest = max(len(label) for label in labels)
        widest = _GAPS + TEXT * handle_length + _CHARACTER * longest
        num_columns = max(1, min(len(labels), int(LEGEND_LINE / widest)))
        self.grow(LEGEND_ROW * math.ceil(len(labels) / num_columns))
        self.figure.legend(
            handles, labels, loc="outside lower left", ncols=num_columns, handlelength=handle_length
        )

    def heading(self, panel: "Axes", text: str) -> None:
        panel.set_title(" ", loc="left")  # Keeps room for it.
        self._at_left(panel, text, y=1.0, role="ink")

    def note(self, panel: "Axes", text: str) -> None:
        panel.set_axis_off()
        self._at_left(panel, text, y=0.92, role="muted")

    def _at_left(self, panel: "Axes", text: str, *, y: float, role: str) -> None:
        from matplotlib.transforms import blended_transform_factory

        place = blended_transform_factory(self.figure.transFigure, panel.transAxes)
        written = panel.text(0.012, y, text, transform=place, color=self.palette[role])
        written.set_verticalalignment("top" if y < 1 else "bottom")
        # Constrained layout would move the panels to make room for it.
        written.set_in_layout(False)

    def _ink(self, look: Look) -> dict[str, Any]:
        # A filled point has a rim in the surface's colour: points that overlap stay apart.
        colour, surface = self.palette[look.role], self.palette["surface"]
        if look.marker in STROKES:
            return {"color": colour, "linewidths": 1.0}
        if look.is_filled:
            return {"facecolors": colour, "edgecolors": surface, "linewidths": 0.8}
        return {"facecolors": surface, "edgecolors": colour, "linewidths": 1.2}


class Sketch(NamedTuple):
    """A figure as matplotlib has it."""

    canvas: Canvas
    alt: str


@dataclass(frozen=True, kw_only=True)
class FigureKind:
    """A kind of figure that a part of a study can be drawn as."""

    title: str
    about: str
    draw: Callable[[StudyPart, Palette], Sketch | None]
    """Draws it in a palette; None where there is nothing to draw."""


def style(palette: Palette) -> dict[Any, Any]:
    muted = ("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    sized = ["font.size", "axes.labelsize", "axes.titlesize", "legend.fontsize"]
    sized += [f"{axis}tick.labelsize" for axis in "xy"]
    spines = tuple(f"axes.spines.{side}" for side in ("top", "right", "left"))
    ticks = [f"{axis}tick.{kind}.size" for axis in "xy" for kind in ("major", "minor")]
    # `text.parse_math`: a `$` in a name is no formula.
    off = ("text.parse_math", *spines, "axes.unicode_minus", "legend.frameon")
    return {
        # Texts stay texts, which can be selected and read aloud, and are smaller than outlines.
        "svg.fonttype": "none",
        # Without a salt matplotlib makes ids at random.
        "svg.hashsalt": "tune_speed",
        "text.color": palette["ink"],
        "grid.color": palette["grid"],
        "grid.linewidth": 0.8,
        "lines.solid_capstyle": "round",
        **dict.fromkeys(muted, palette["muted"]),
        **dict.fromkeys(sized, TEXT),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
        **dict.fromkeys(off, False),
        **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
        **dict.fromkeys(ticks, 0),
        **{f"figure.constrained_layout.{pad}_pad": 0.05 for pad in "hw"},
        **{"legend.handletextpad": 0.4, "legend.columnspacing": 1.2, "legend.borderpad": 0.1},
    }
