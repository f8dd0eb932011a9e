"""What pictures that matplotlib draws have in common."""

from pathlib import Path
from typing import TYPE_CHECKING

from tune_speed.core.errors import StorageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
DPI = 130


def write_figure(figure: "Figure", path: Path, *, dpi: int = DPI, facecolor: str = "auto") -> None:
    """Writes a picture, in the format of the path's suffix; makes its folder if needed.

    Raises: StorageError if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi, facecolor=facecolor)
    except OSError as error:
        raise StorageError(f"{path} must be writable, but got: {error.strerror}.") from error
