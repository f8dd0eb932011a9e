"""What the published settings are in a recipe's words: plain data, for finding ours beside them.

A recipe's path skips the names of entries: `optimizer` is `adam`, `optimizer.weight_decay` is 1e-3.
`lr` is the rate of one step, whatever `lr_per_examples` says. A path that a setting lacks is one
that its source does not name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

MODELS_HERE: Mapping[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "ResNet-50": (
        ("resnet50", {}),
        ("timm", {"name": "resnet50"}),
        ("torchvision", {"name": "resnet50"}),
    ),
    "ViT": (
        ("vit", {"size": "base"}),
        ("timm", {"name": "vit_base_patch16_224"}),
        ("torchvision", {"name": "vit_b_16"}),
    ),
    "EfficientNet": (
        ("efficientnet_b0", {}),
        ("timm", {"name": "efficientnet_b0"}),
        ("torchvision", {"name": "efficientnet_b0"}),
    ),
    "VGG16-BN": (
        ("vgg16_bn", {}),
        ("timm", {"name": "vgg16_bn"}),
        ("torchvision", {"name": "vgg16_bn"}),
    ),
    "VGG19": (("vgg19", {}), ("timm", {"name": "vgg19"}), ("torchvision", {"name": "vgg19"})),
    "AlexNet": (("alexnet", {}), ("torchvision", {"name": "alexnet"})),
    "SqueezeNet": (
        ("squeezenet", {}),
        ("torchvision", {"name": "squeezenet1_0"}),
        ("torchvision", {"name": "squeezenet1_1"}),
    ),
    "ResNet-18": (
        ("resnet18", {}),
        ("timm", {"name": "resnet18"}),
        ("torchvision", {"name": "resnet18"}),
    ),
    "ResNet-20": (("resnet20", {}), ("resnet", {"depth": 20})),
    "pre-activation ResNet-20": (("preact_resnet", {"depth": 20}),),
}
"""Published network: the networks here that are the same, with the fields that make them so."""

DATASETS_HERE: Mapping[str, str] = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
"""Published data set: its name here, or in the name of the file that it is read from."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One arm of a source: where its figures are in `published.csv`, and what was done."""

    source: str
    table: str
    model: str
    dataset: str
    setting: str
    recipe: Mapping[str, Any]
    evaluated_on: Literal["test", "validation"]
    hardware: str = ""
    """As part of a device's name; empty: not named."""
    train_images: int = 50_000
    beside: str = ""
    """What sets the arm apart that no field of a recipe says; empty where nothing is known."""
    baseline: str = ""
    """Setting that its speed-up counts from, of the same table and data set; empty: none."""


def _brief_review() -> Iterator[Setting]:
    """Yields the arms of Nokhwal et al.; from their code where the paper does not say."""
    scratch = {"model.pretrained": False, "model.stem": "cifar", "loader.pin_memory": True}
    tuned = {"model.pretrained": True, "model.resize_to": 224, "loader.pin_memory": True}
    resnet50 = {
        **scratch,
        "optimizer": "adam",
        "lr": 1e-3,
        "optimizer.weight_decay": 1e-3,
        "lr_schedule": "one_cycle",
        "batch_size": 128,
        "epochs": 30,
    }
    vit = {**tuned, "optimizer": "adamw", "optimizer.weight_decay": 0.01, "batch_size": 70}
    efficientnet = {
        **tuned,
        "model.drop_rate": 0.2,
        "optimizer": "sgd",
        "lr": 0.01,
        "optimizer.momentum": 0.9,
        "optimizer.nesterov": True,
        "optimizer.weight_decay": 1e-3,
        "batch_size": 96,
        "epochs": 20,
    }
    for dataset, vit_fields, micro_batches in (
        ("CIFAR-10", {"lr": 2e-5, "epochs": 10}, 15),
        ("CIFAR-100", {"lr": 3e-5, "epochs": 15}, 20),
    ):
        yield from _arms("ResNet-50", dataset, resnet50, micro_batches=2, clip_value=0.01)
        yield from _arms(
            "ViT", dataset, {**vit, **vit_fields}, micro_batches=micro_batches, train_images=45_000
        )
        yield from _arms(
            "EfficientNet",
            dataset,
            efficientnet,
            micro_batches=2,
            beside="a tenth of the rate in the body, times 0.975 an epoch, per the authors' code",
        )


def _arms(
    model: str,
    dataset: str,
    recipe: Mapping[str, Any],
    *,
    micro_batches: int,
    clip_value: float | None = None,
    train_images: int = 50_000,
    beside: str = "",
) -> Iterator[Setting]:
    """Yields the arms without and with accumulation, mixed precision and pinned memory.

    Pinned memory is on in both, per the authors' code; so is no clipping in the second.
    """
    without = {"accumulation_steps": 1, "precision": "fp32", "clip_value": clip_value}
    techniques = {"accumulation_steps": micro_batches, "precision": "fp16", "clip_value": None}
    arms = (("without techniques", without, ""), ("with techniques", techniques, "without "))
    for setting, fields, baseline in arms:
        yield Setting(
            source="Nokhwal et al. 2023",
            table="Table I",
            model=model,
            dataset=dataset,
            setting=setting,
            recipe={**recipe, **fields},
            evaluated_on="test",
            train_images=train_images,
            beside=beside,
            baseline=f"{baseline}techniques" if baseline else "",
        )


def _bristol() -> Iterator[Setting]:
    """Yields the single epochs of Nicka."""
    clusters = (
        ("BlueCrystal4 (Tesla P100)", "P100", {"CIFAR-10": "Table I", "CIFAR-100": "Table III"}),
        (
            "BluePebble (RTX 3080 Ti)",
            "3080 Ti",
            {"CIFAR-10": "Table II", "CIFAR-100": "Table IV"},
        ),
    )
    for cluster, hardware, tables in clusters:
        for dataset, table in tables.items():
            for model in ("VGG16-BN", "SqueezeNet", "AlexNet", "VGG19", "ResNet-18"):
                yield Setting(
                    source="Nicka 2021",
                    table=table,
                    model=model,
                    dataset=dataset,
                    setting=f"pretrained, 1 epoch, {cluster}",
                    recipe={"model.pretrained": True, "optimizer": "sgd", "epochs": 1},
                    evaluated_on="validation",
                    hardware=hardware,
                )


def _resnet_project() -> Iterator[Setting]:
    """Yields the arms of Solomatov & Stepanov."""
    baseline = {
        "optimizer": "sgd",
        "lr": 0.1,
        "lr_schedule": "multi_step",
        "lr_schedule.milestones": [0.4, 0.8],
        "lr_schedule.gamma": 0.1,
        "epochs": 200,
        "batch_size": 128,
        "precision": "fp32",
        "devices": 1,
    }
    skipping = {"speedups.depth": "stochastic_depth"}
    uniform = {"speedups.depth.survival": 0.5, "speedups.depth.rule": "uniform"}
    # With several devices the rates are not named; the best model has another schedule.
    several = {k: v for k, v in baseline.items() if k not in ("lr", "batch_size")}
    best = {k: v for k, v in several.items() if not k.startswith("lr_schedule.")}
    arms: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
        ("ResNet-20", "baseline", baseline),
        ("ResNet-20", "half precision", {**baseline, "precision": "half"}),
        ("pre-activation ResNet-20", "pre-activation", baseline),
        ("ResNet-20", "4 GPUs", {**several, "devices": 4}),
        ("ResNet-20", "stochastic depth", {**baseline, **skipping}),
        (
            "pre-activation ResNet-20",
            "best model",
            {**best, **skipping, **uniform, "devices": 4, "effective_batch_size": 1024},
        ),
    )
    for model, name, recipe in arms:
        yield Setting(
            source="Solomatov & Stepanov",
            table="Results",
            model=model,
            dataset="CIFAR-10",
            setting=f"{name}, 200 epochs",
            recipe=recipe,
            evaluated_on="test",
            hardware="1080 Ti",
            baseline="" if name == "baseline" else "baseline, 200 epochs",
        )


SETTINGS: tuple[Setting, ...] = (*_brief_review(), *_bristol(), *_resnet_project())
"""Every published arm that a recipe here can be."""


def base_of(setting: Setting) -> Setting | None:
    """Returns the arm that a setting's speed-up counts from; None if it is none itself."""
    place = (setting.source, setting.table, setting.dataset, setting.baseline)
    bases = [s for s in SETTINGS if (s.source, s.table, s.dataset, s.setting) == place]
    own = [base for base in bases if base.model == setting.model]
    return next(iter(own or bases), None)
