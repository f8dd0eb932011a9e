"""What pictures that matplotlib draws have in common."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from tune_speed.core.errors import ConfigError, writing
from tune_speed.core.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
DPI = 130
FORMATS = (".png", ".pdf", ".svg")


def check_format(option: str, path: Path) -> None:
    """Raises: ConfigError if no picture can be written in the format that `path` names."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"{option} must be a file that ends in {', '.join(FORMATS)}, got {path}.")


def write_figure(
    figure: "Figure", path: Path, *, dpi: float = DPI, facecolor: str = "auto"
) -> None:
    """Writes a picture in the format of the path's suffix. Raises: StorageError."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi, facecolor=facecolor)


def folded(text: str, width: int) -> str:
    """Returns `text` in lines, no part of which Matplotlib takes for a formula."""
    # Line by line: a line feed would get a mark too, and `\$` must not be torn apart.
    return "\n".join(printable(line).replace("$", r"\$") for line in textwrap.wrap(text, width))


def log_scales(panel: "Axes") -> None:
    """Gives both axes plain numbers, such as 0.02 and 5, and none between them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.set(xscale="log", yscale="log")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
