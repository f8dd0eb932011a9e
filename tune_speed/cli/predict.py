"""The commands on a saved network: `predict`, and `export`, which gives it to other tools."""

from pathlib import Path
from typing import Annotated

import typer

from tune_speed.cli import common

ModelArgument = Annotated[
    Path, typer.Argument(help="A file of `train --save` or `certify --save`.")
]


def predict(
    model: ModelArgument,
    images: Annotated[list[Path], typer.Argument(help="Folders of images, or image files.")],
    output: Annotated[
        Path | None,
        typer.Option(help="Write a line an image to this file, .csv or .jsonl; default: stdout."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Classes named for each image.")] = 1,
    plugin: common.PluginOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Classify images by a saved network: a line with path, class and chance for each.

    Where they lie in folders of the classes' names, accuracy and confusion matrix follow. Files
    that cannot be used are named at the end (exit code 3). Ctrl-C leaves the lines so far.

    Example: tune-speed predict model.pt photos/test --output classes.csv
    """
    from tune_speed.api import predicted
    from tune_speed.core.errors import DataError

    progress = common.on_stderr()
    found = predicted.predict(model, images, output=output, top=top, progress=progress)
    if as_json or output is not None:
        common.show(found, as_json=as_json)
    else:
        common.print_listing([*found.rows], "csv", title="predictions")
        common.note(str(found))
    for line in found.damaged:
        common.note(f"not used: {line}")
    if found.was_stopped:
        common.note(f"stopped after {len(found.rows):,} images")
        raise typer.Exit(common.INTERRUPTED)
    if found.damaged:
        raise typer.Exit(DataError.exit_code)


def export(
    model: ModelArgument,
    onnx: Annotated[
        Path | None, typer.Option(help="Write an ONNX graph to this file; needs tune_speed[onnx].")
    ] = None,
    register: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Add it to MLflow's model registry under this name."),
    ] = None,
    plugin: common.PluginOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Give a saved network to other tools: as an ONNX graph, or in MLflow's model registry.

    Example: tune-speed export model.pt --register flowers
    """
    import torch

    from tune_speed.training.saved_model import SavedModel

    saved, done = SavedModel.read(model, torch.device("cpu")), dict[str, str | float]()
    if register is not None:
        from tune_speed.tracking.writer import models

        store = common.store()
        done["registered"] = models.register(store, saved.log(store, run_id=None), register)
    if onnx is not None:
        from tune_speed.experiments.exports.onnx_graph import write_onnx

        done |= {"onnx": str(onnx), "largest_difference": write_onnx(saved, onnx)}
    if as_json:
        common.say_json(done)
    for name, value in done.items():
        common.note(f"{name.replace('_', ' ')}: {value}")
