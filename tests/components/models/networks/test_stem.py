import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tune_speed.components.models.libraries import Timm, TorchVision
from tune_speed.components.models.networks.libraries import (
    STEMS,
    first_conv,
    loading_notes,
    set_in_channels,
)
from tune_speed.core.errors import DataError


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 5, stride=2, padding=1)), nn.Flatten())


def test_grey_images_give_what_they_gave_as_three_equal_channels():
    grey = torch.randn(2, 1, 9, 9)
    expected = network()(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(set_in_channels(network(), 1)(grey), expected)


@pytest.mark.parametrize("in_channels", [2, 6])
def test_other_channel_counts_keep_the_scale(in_channels):
    path, conv = first_conv(set_in_channels(network(), in_channels))
    old = network()[0][0].weight
    assert path == "0.0"
    assert conv.in_channels == in_channels
    torch.testing.assert_close(conv.weight[:, 0], old[:, 0] * 3 / in_channels)
    torch.testing.assert_close(conv.weight[:, -1], old[:, (in_channels - 1) % 3] * 3 / in_channels)


def test_three_channels_leave_the_network_as_it_is():
    given = network()
    conv = given[0][0]
    assert set_in_channels(given, 3)[0][0] is conv


@pytest.mark.parametrize("kind", sorted(STEMS))
def test_every_class_with_a_cifar_stem_exists(kind):
    module, name = kind.rsplit(".", 1)
    assert issubclass(getattr(__import__(module, fromlist=[name]), name), nn.Module)


KINDS = [(Timm, "test_resnet"), (TorchVision, "squeezenet1_1")]


def build(kind, name, *, num_classes=10, in_channels=3, **fields):
    config = kind(name=name, **fields)
    return config.build(in_channels=in_channels, num_classes=num_classes, image_size=32)


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_weights_file_gives_back_the_saved_network(kind, name, tmp_path):
    saved = build(kind, name)
    torch.save(saved.state_dict(), tmp_path / "w.pt")
    loaded = build(kind, name, weights_file=str(tmp_path / "w.pt"))
    assert all(map(torch.equal, saved.state_dict().values(), loaded.state_dict().values()))


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_classifier_starts_fresh_for_another_class_count(kind, name, tmp_path):
    saved = build(kind, name, num_classes=100).state_dict()
    torch.save(saved, tmp_path / "w.pt")
    loaded = build(kind, name, weights_file=str(tmp_path / "w.pt")).state_dict()
    fresh = {key for key in saved if not torch.equal(saved[key], loaded[key])}
    assert fresh in ({"fc.weight", "fc.bias"}, {"classifier.1.weight", "classifier.1.bias"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "resnet10t"}, "is unknown to the model"),
        ({"name": "test_vit"}, "is missing"),
        ({"name": "test_resnet", "in_channels": 1}, "(16, 3, 3, 3) instead of (16, 1, 3, 3)"),
    ],
)
def test_weights_of_another_network_are_refused(fields, message, tmp_path):
    torch.save(build(Timm, "test_resnet", num_classes=100).state_dict(), tmp_path / "w.pt")
    with pytest.raises(DataError, match="must match the model") as caught:
        build(Timm, weights_file=str(tmp_path / "w.pt"), **fields)
    assert message in str(caught.value)


class Explosive:
    def __reduce__(self):
        return print, ("a pickle must not be run",)


@pytest.mark.parametrize("content", [b"", b"no weights", pickle.dumps(Explosive())])
def test_files_that_hold_no_state_dict_are_refused(content, tmp_path, capsys):
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(DataError, match="must hold a state dict"):
        build(Timm, "test_resnet", weights_file=str(tmp_path / "w.pt"))
    assert capsys.readouterr().out == ""


def test_a_checkpoint_around_the_state_dict_is_refused(tmp_path):
    torch.save({"model": {}, "epoch": 3}, tmp_path / "w.pt")
    with pytest.raises(DataError, match=r"torch.save\(model.state_dict\(\), file\)"):
        build(Timm, "test_resnet", weights_file=str(tmp_path / "w.pt"))


def test_a_missing_file_is_named():
    with pytest.raises(DataError, match=r"none at 'nowhere/w.pt'"):
        build(Timm, "test_resnet", weights_file="nowhere/w.pt")


def renamed(weights):
    """Returns the tensors under modules of other names, in their order."""
    return {f"part{n}.{name.rpartition('.')[2]}": w for n, (name, w) in enumerate(weights.items())}


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_tensors_of_other_names_are_taken_in_their_order_and_the_network_says_so(
    kind, name, tmp_path
):
    saved = build(kind, name, num_classes=100).state_dict()
    torch.save(renamed(saved), tmp_path / "w.pt")
    network = build(kind, name, weights_file=str(tmp_path / "w.pt"))
    loaded = network.state_dict()
    fresh = {key for key in saved if not torch.equal(saved[key], loaded[key])}
    assert fresh in ({"fc.weight", "fc.bias"}, {"classifier.1.weight", "classifier.1.bias"})
    (note,) = loading_notes(nn.Sequential(network))
    assert str(tmp_path / "w.pt") in note and str(len(saved)) in note


def test_tensors_found_by_their_names_need_no_note(tmp_path):
    torch.save(build(Timm, "test_resnet").state_dict(), tmp_path / "w.pt")
    assert loading_notes(build(Timm, "test_resnet", weights_file=str(tmp_path / "w.pt"))) == []


@pytest.mark.parametrize("fault", ["one fewer", "another order", "one known name", "other kinds"])
def test_tensors_of_other_names_that_do_not_fit_in_order_are_refused(fault, tmp_path):
    saved = renamed(build(Timm, "test_resnet").state_dict())
    if fault == "one fewer":
        saved.popitem()
    elif fault == "another order":
        saved = dict(sorted(saved.items(), key=lambda item: item[1].numel()))
    elif fault == "one known name":
        (_, first), *others = saved.items()
        saved = {next(iter(build(Timm, "test_resnet").state_dict())): first, **dict(others)}
    else:
        # As in the alphabet, where biases come before weights of their shape.
        saved = {name.replace("weight", "gamma"): tensor for name, tensor in saved.items()}
    torch.save(saved, tmp_path / "w.pt")
    with pytest.raises(DataError, match="do not"):
        build(Timm, "test_resnet", weights_file=str(tmp_path / "w.pt"))


def test_safetensors_are_read_and_damaged_ones_are_refused(tmp_path):
    saved = build(Timm, "test_resnet").state_dict()
    save_file(saved, tmp_path / "w.safetensors")
    loaded = build(Timm, "test_resnet", weights_file=str(tmp_path / "w.safetensors"))
    assert all(torch.equal(saved[name], w) for name, w in loaded.state_dict().items())
    (tmp_path / "w.safetensors").write_bytes(b"no tensors")
    with pytest.raises(DataError, match="state dict"):
        build(Timm, "test_resnet", weights_file=str(tmp_path / "w.safetensors"))
