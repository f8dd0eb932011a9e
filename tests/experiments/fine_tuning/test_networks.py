"""The table of networks: the choice, weights recognised by their tensors, and the hub's cache."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from helpers.data.files import go_offline, publish

from tune_speed.core.errors import ConfigError, DataError
from tune_speed.data.base import Images
from tune_speed.experiments.fine_tuning import networks
from tune_speed.experiments.fine_tuning.networks import EPOCH_S, NETWORKS, ordered, starting_model

SMALL = "mobilenetv3_small_100.lamb_in1k"


def test_the_table_names_published_networks_of_timm() -> None:
    assert {each.name for each in NETWORKS} <= set(timm.list_models(pretrained=True))
    assert all(50 < each.top1 < 95 and each.cpu > 0 for each in NETWORKS)


@pytest.mark.parametrize(("hardware", "num_train"), [("cpu", 3000), ("gpu", 30_000)])
def test_the_most_accurate_of_those_with_a_short_epoch_is_chosen(
    hardware: networks.Hardware, num_train: int
) -> None:
    speeds = {each.name: getattr(each, hardware) for each in NETWORKS}
    quick = [each for each in NETWORKS if num_train <= EPOCH_S * speeds[each.name]]
    best = ordered(num_train, hardware)
    assert best[0] == max(quick, key=lambda each: each.top1).name
    assert all(speeds[name] > 0 for name in best), "what no table has is not chosen by it"
    # Of more images than any passes over in time, the quickest.
    assert ordered(10**9, hardware)[0] == max(speeds, key=lambda name: speeds[name])


@pytest.mark.parametrize("num_classes", [1000, 7])
def test_weights_are_recognised_whatever_their_classes(num_classes: int) -> None:
    for name in (SMALL, "resnet18.a1_in1k", "regnety_002.pycls_in1k"):
        with torch.device("meta"):
            weights = timm.create_model(name, num_classes=num_classes).state_dict()
        assert networks.recognised(weights, origin="w.pt") == name
    weights.popitem()
    weights["more"] = torch.zeros(1)
    with pytest.raises(DataError, match="--model"):
        networks.recognised(weights, origin="w.pt")


def test_weights_of_other_names_are_recognised_by_their_order() -> None:
    with torch.device("meta"):
        weights = timm.create_model(SMALL).state_dict()
    others = {f"their{number}.{name}": each for number, (name, each) in enumerate(weights.items())}
    assert networks.recognised(others, origin="w.pt") == SMALL
    with pytest.raises(DataError, match="--model"):
        networks.recognised(dict(reversed(others.items())), origin="w.pt")


def test_of_twins_the_one_is_taken_that_the_weights_were_trained_as(tmp_path: Path) -> None:
    rng, file = np.random.default_rng(0), str(tmp_path / "w.pt")
    waves = np.sin(np.arange(48) / 9 + rng.uniform(0, 6, (24, 1))) * 60 + 128
    pixels = (waves[:, :, None] + waves[:, None, :])[..., None] / 2 * rng.uniform(0.5, 1, 3)
    images = Images(pixels.astype(np.uint8), np.zeros(24, np.int64))
    for name in (SMALL, twin := networks.TWINS[SMALL]):
        torch.manual_seed(0)
        network = timm.create_model(name).train()
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0
        config = timm.get_pretrained_cfg(name)
        shown = torch.from_numpy(images.pixels).permute(0, 3, 1, 2) / 255
        network(
            (shown - torch.tensor(config.mean)[:, None, None])
            / torch.tensor(config.std)[:, None, None]
        )
        torch.save(network.state_dict(), file)
        assert networks.twin_of(SMALL, file, images, 48) == name
    assert networks.twin_of("resnet18.a1_in1k", file, images, 48) == "resnet18.a1_in1k"
    assert {*networks.TWINS.values()} <= set(timm.list_models(pretrained=True)) | {twin}


def test_a_file_s_network_is_named_or_recognised(tmp_path: Path) -> None:
    file, said = str(tmp_path / "w.pt"), list[str]()
    torch.save(timm.create_model(SMALL).state_dict(), file)
    expected = {"name": SMALL, "weights_file": file}
    assert starting_model(file, ordered(100, "cpu"), said.append) == expected
    assert starting_model(file, [SMALL], said.append) == expected
    assert SMALL in said[0]
    fixed = starting_model(file, ["vit_small_patch16_224"], said.append)
    assert fixed is not None and fixed["resize_to"] == 224, "as its position embeddings are"
    with pytest.raises(ConfigError, match="resnet1818"):
        starting_model(file, ["resnet1818"], said.append)


def test_offline_only_the_cache_s_networks_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_offline(monkeypatch, tmp_path)
    said: list[str] = []
    wanted = ordered(3000, "cpu")
    assert starting_model(None, wanted, said.append) is None
    assert wanted[0] in said[0], "it says what could not be fetched"
    publish(timm.create_model(SMALL), tmp_path, name=SMALL)
    assert starting_model(None, wanted, said.append) == {"name": SMALL, "pretrained": True}
    assert starting_model(None, [SMALL], said.append) == {"name": SMALL, "pretrained": True}


def test_a_silent_hub_is_given_up_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(
        huggingface_hub.constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}",
    )
    reason = networks.why_not_fetched(SMALL)
    assert reason is not None and SMALL in reason
