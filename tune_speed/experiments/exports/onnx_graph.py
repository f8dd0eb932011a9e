"""A saved network as an ONNX graph, held against the network itself."""

from pathlib import Path

import numpy as np
import torch

from tune_speed.core.errors import ConfigError
from tune_speed.core.version import installed_version
from tune_speed.runtime.atomic_file import write_file
from tune_speed.training.saved_model import SavedModel

NEEDED = ("onnx", "onnxscript", "onnxruntime")
MOST_DIFFERENCE = 1e-4
"""Of a logit, by ONNX Runtime and by torch."""


def write_onnx(saved: SavedModel, path: Path) -> float:
    """Writes the graph, and returns by how much its logits differ from torch's at most.

    It takes `pixels`, uint8 (N, C, H, W): windows as evaluation shows them, not normalised; and
    gives `logits`, float32 (N, K). Where the training used autocast, its arithmetic is fp32.

    Raises: ConfigError if a package is missing, or logits differ by more; StorageError.
    """
    if missing := [name for name in NEEDED if not installed_version(name)]:
        must = f"must be left out where {', '.join(missing)} is not installed"
        hint = "Install `tune_speed[onnx]`."
        raise ConfigError.of("onnx", must, given=str(path), hint=hint)
    from onnxruntime import InferenceSession

    saved.dtype = None
    pixels = np.random.default_rng(0).integers(0, 256, (2, *saved.window_shape), np.uint8)
    program = torch.onnx.export(
        saved,
        (torch.from_numpy(pixels),),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("images")},),
        input_names=["pixels"],
        output_names=["logits"],
    )
    assert program is not None
    content = program.model_proto.SerializeToString()
    session = InferenceSession(content, providers=["CPUExecutionProvider"])
    (found,) = session.run(["logits"], {"pixels": pixels})
    with torch.inference_mode():
        difference = float(np.abs(found - saved(torch.from_numpy(pixels)).numpy()).max())
    if not difference <= MOST_DIFFERENCE:
        must = f"must give torch's logits to within {MOST_DIFFERENCE:g}"
        raise ConfigError.of("onnx", must, given=f"a difference of {difference:.3g}")
    write_file(path, content)
    return difference
