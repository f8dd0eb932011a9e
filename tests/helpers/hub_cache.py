"""A cache of published weights, in which tests put what a hub would give."""

import huggingface_hub
from safetensors.torch import save_file

REVISION = "0" * 40


def go_offline(monkeypatch, folder):
    """Lets timm find published weights in `folder` alone."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))


def publish(network, folder, *, name):
    """Puts a network's weights in `folder` as those of timm's `name`, which has its tag."""
    repository = folder / f"models--timm--{name}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(REVISION)
    (repository / "snapshots" / REVISION).mkdir(parents=True)
    save_file(network.state_dict(), repository / "snapshots" / REVISION / "model.safetensors")
