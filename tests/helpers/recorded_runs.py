"""Recipes whose steps are recorded, for tests on a GPU and for those with a stand-in on a CPU."""

from typing import Any

RECORDED: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "accumulation, ragged": {"batch_size": 3, "accumulation_steps": 3},
    "smaller last batch": {"batch_size": 7},
    "batch larger than the set": {"batch_size": 64},
    "clipping": {"clip_norm": 0.5, "clip_value": 0.1},
    "adamw, one-cycle": {"optimizer": {"adamw": {"lr": 1e-3}}, "lr_schedule": "one_cycle"},
    "streamed": {"loader": {"dataloader": {"workers": 1}}},
    "contiguous": {"channels_last": False},
    "whitening": {"speedups": {"init": {"whitening": {}}}, "model": {"plain_cnn": {"width": 8}}},
    "whitening, bias for half of the run": {
        "speedups": {"init": {"whitening": {"frozen": True, "bias_frac": 0.5}}},
        "model": {"speednet": {"width1": 4, "width2": 8, "width3": 8}},
    },
    "growing images": {"speedups": {"resolution": {"progressive_resizing": {}}}},
    "growing batches": {"speedups": {"batch_growth": {"batch_stages": {}}}},
    "ema": {"speedups": {"averaging": {"ema": {}}}},
    "focal loss": {"speedups": {"loss": {"focal": {}}}},
    "scored order": {"order": {"curriculum": {"step_length": 1, "scoring_epochs": 0.5}}},
    "epochs of different lengths": {"order": {"repeat_factor": {"threshold": 0.9}}},
    "label smoothing": {"label_smoothing": 0.1},
}
"""What each changes about a small recipe."""
