"""Networks to fine-tune: how accurate and how fast each is, and where its weights can be had.

Sources: top-1 from timm's `results-imagenet.csv` (aa4b5850, 224 pixels); images a second on a GPU
from its `benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv` (224 pixels; 0: not in it); those on a
CPU were measured by the processor time of AdamW steps, one thread of an AMD EPYC at work on other
things too, torch's eager fp32, 32 images of 128 pixels, medians of three. That other machines order
networks alike is a guess: the range test times the one that is chosen.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tune_speed.core.errors import ConfigError, DataError
from tune_speed.data.base import Images

if TYPE_CHECKING:
    from torch import Tensor

HUB_WAIT_S = 5.0
"""Longest wait for an answer of the hub of published weights [s]."""
FILE = "model.safetensors"
"""Of a network, in the hub."""


class Network(NamedTuple):
    """A network of the table."""

    name: str
    """In timm, with the tag of its weights."""
    top1: float
    """Accuracy on ImageNet [%]."""
    cpu: float
    gpu: float = 0.0
    """Training images a second."""


EPOCH_S = 90.0
"""Longest epoch of the network that is chosen, by the table and at its sizes [s]."""
Hardware = Literal["cpu", "gpu"]
# Six epochs of clothing photographs at 128 pixels ended lower than four at 160, which take as long.
PIXELS: Mapping[Hardware, int] = {"cpu": 160, "gpu": 224}
"""Side at which images are shown, where they are as large."""
NETWORKS = (
    Network("mobilenetv3_small_100.lamb_in1k", 67.6, 205, 8035),
    Network("regnety_002.pycls_in1k", 70.3, 113, 3778),
    Network("resnet18.a1_in1k", 71.5, 26, 3482),
    Network("mobilenetv4_conv_small.e2400_r224_in1k", 73.8, 115),
    Network("efficientnet_lite0.ra_in1k", 75.5, 48, 2079),
    Network("regnety_004.tv2_in1k", 75.6, 57, 2086),
    Network("convnext_atto.d2_in1k", 75.7, 48),
    Network("mobilenetv3_large_100.ra_in1k", 75.8, 71, 2732),
    Network("efficientnet_b0.ra_in1k", 77.7, 36, 1752),
    Network("resnet50.a1_in1k", 80.4, 10.5, 1218),
    Network("vit_small_patch16_224.augreg_in21k_ft_in1k", 81.4, 9.5, 1058),
    Network("convnext_tiny.in12k_ft_in1k", 84.2, 7.8, 819),
)
TWINS = {
    "mobilenetv3_small_100.lamb_in1k": "tf_mobilenetv3_small_100.in1k",
    "mobilenetv3_large_100.ra_in1k": "tf_mobilenetv3_large_100.in1k",
    "efficientnet_lite0.ra_in1k": "tf_efficientnet_lite0.in1k",
    "efficientnet_b0.ra_in1k": "tf_efficientnet_b0.in1k",
}
"""Networks with the same tensors, and the padding, epsilon and normalisation of TensorFlow."""
HEAD = 1000
"""Classes that networks of the table are published with."""
PROBED = 64
"""Images that decide between twins."""


def ordered(num_train: int, hardware: Hardware) -> list[str]:
    """Returns the networks whose speed there is known, the best choice for so many images first.

    Those with a short enough epoch come by accuracy; the others follow by speed.
    """

    def order(network: Network) -> tuple[bool, float]:
        speed = getattr(network, hardware)
        is_slow = num_train > EPOCH_S * speed
        return is_slow, -speed if is_slow else -network.top1

    known = [each for each in NETWORKS if getattr(each, hardware)]
    return [each.name for each in sorted(known, key=order)]


def starting_model(
    file: str | None, wanted: list[str], say: Callable[[str], None]
) -> dict[str, Any] | None:
    """Returns the fields of a model of timm with published weights; None: none can be had.

    `file` holds weights of the only network of `wanted`, or of one of the table. Without a file
    those of the first in `wanted` are fetched, or of the first whose weights the hub's cache has.

    Raises: ConfigError if there is no such network; DataError for a file that cannot be used.
    """
    if file is not None:
        from tune_speed.components.models.networks.libraries import read_weights

        name = wanted[0] if len(wanted) == 1 else recognised(read_weights(file), origin=file)
        config = _config(name)
        say(f"network: {name} with the weights of {file}")
        # Position embeddings in a file are of the published size.
        size = {"resize_to": config.input_size[-1]} if config.fixed_input_size else {}
        return {"name": name, "weights_file": file, **size}
    if reason := why_not_fetched(wanted[0]):
        say(reason)
    found = next(filter(_is_cached, wanted), None)
    if found is not None:
        say(f"network: {found}, with published weights")
    return {"name": found, "pretrained": True} if found else None


def recognised(weights: "Mapping[str, Tensor]", *, origin: str) -> str:
    """Returns the network of the table that has these tensors by name and shape, but its head's.

    Where no name is the network's, they must be its tensors in order.

    Raises: DataError if there is none.
    """
    import timm
    import torch

    from tune_speed.components.models.networks.libraries import fit_in_order

    def shapes(of: "Mapping[str, Tensor]", head: str) -> dict[str, tuple[int, ...]]:
        return {name: tuple(each.shape) for name, each in of.items() if not name.startswith(head)}

    for name, *_ in NETWORKS:
        with torch.device("meta"):
            own = timm.create_model(name).state_dict()
        head = f"{_config(name).classifier}."
        is_in_order = not own.keys() & weights.keys() and fit_in_order(own, weights, HEAD)
        if is_in_order or shapes(own, head) == shapes(weights, head):
            return name
    known = ", ".join(each.name.partition(".")[0] for each in NETWORKS)
    raise DataError(
        f"{origin} must hold weights in timm's layout of one of {known} to be recognised, but names"
        " or shapes of tensors differ. Name its network with --model."
    )


def twin_of(name: str, file: str, images: Images, side: int) -> str:
    """Returns `name` or its twin: the one whose batch norms in `file` know such images better."""
    if (twin := TWINS.get(name)) is None:
        return name
    from tune_speed.components.models.networks.libraries import read_weights

    weights = read_weights(file)
    return min((name, twin), key=lambda each: _mismatch(each, weights, images, side))


def _mismatch(name: str, weights: "Mapping[str, Tensor]", images: Images, side: int) -> float:
    """Returns the mean of (ln σ² / s²)² over all channels of batch norms.

    σ² is the variance that the norm has in the file, s² that of its input, for `PROBED` images.
    """
    import timm
    import torch

    from tune_speed.components.models.networks.libraries import load_weights
    from tune_speed.data.loaders.resident import View, eval_batches

    config, found = _config(name), list[torch.Tensor]()

    def compare(norm: torch.nn.BatchNorm2d, given: tuple[torch.Tensor], _: object) -> None:
        assert norm.running_var is not None
        seen, known = given[0].var((0, 2, 3)), norm.running_var
        found.append(((known + norm.eps) / (seen + norm.eps)).log() ** 2)

    network = load_weights(timm.create_model(name), weights, num_classes=HEAD, origin=name).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.register_forward_hook(compare)
    some = slice(None, None, -(-len(images.labels) // PROBED))
    sizes = None if images.sizes is None else images.sizes[some]
    shown = Images(images.pixels[some], images.labels[some], sizes)
    view = View(config.mean, config.std, image_size=side)
    with torch.no_grad():
        for pixels, _ in eval_batches(shown, view, batch_size=PROBED, device=torch.device("cpu")):
            network(pixels)
    return float(torch.cat(found).mean())


def _config(name: str) -> Any:
    import timm

    if name.partition(".")[0] not in timm.list_models() or not timm.is_model_pretrained(name):
        raise ConfigError.of("--model", "must name a network of timm with weights", given=name)
    return timm.get_pretrained_cfg(name)


def _is_cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(_config(name).hf_hub_id, FILE), str)


def why_not_fetched(name: str) -> str | None:
    """Fetches published weights, unless they are there; returns why it failed, or None."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    from tune_speed.components.models.networks.libraries import fetching

    place = _config(name).hf_hub_id
    if _is_cached(name):
        return None
    try:
        with fetching(name, library="timm"):
            # One request first, because the download tries for long where there is no network.
            get_hf_file_metadata(hf_hub_url(place, FILE), timeout=HUB_WAIT_S)
            hf_hub_download(place, FILE)
    except DataError as error:
        return str(error).partition(" Try ")[0]
    return None
