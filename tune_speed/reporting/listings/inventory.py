"""Every technique, model, metric and question of the source documents, and where it is to be had.

An item's places are read as follows; a test looks each of them up.

| form                               | place                                                     |
|------------------------------------|-----------------------------------------------------------|
| `models.resnet50`                  | an entry of a table: models, optim, schedules, datasets,  |
|                                    | loaders, orders, speedups, metrics                        |
| `loaders.dataloader.workers`       | a field of an entry                                       |
| `recipe.precision`                 | a field of a recipe; also of `split` and `search`         |
| `search_spaces/seed_resnet50.yaml` | a file of the repository                                  |
| `tests/core/test_errors.py::test_…` | a test                                                   |
| `tune-speed train --against`       | a command                                                 |
"""

from typing import NamedTuple

SOURCES = {
    "S0": "Nokhwal et al., Accelerating Neural Network Training: A Brief Review, arXiv 2312.10024",
    "S1": "Nicka, Performance Improvements of Deep Learning Networks using PyTorch, Bristol",
    "S2": "a review of S0, with open questions and next checks",
    "S3": "Solomatov and Stepanov, Speeding up ResNet training",
    "S4": "a blog post, Training Time Speed Ups",
}
"""The source documents by their short names."""


class Item(NamedTuple):
    """One numbered thing of the inventory."""

    name: str
    where: tuple[str, ...] = ()
    """Places; none where the thing is not there: then `about` says why."""
    claim: str = ""
    """What the sources say it brings, with what is known to be wrong in that."""
    note: str = ""
    """What differs here; follows the description that the first place has in the code."""
    about: str = ""
    """One sentence in place of that description."""


_OTHERS_FIGURES = Item(
    "tables and figures of S0 and S1",
    about="Their figures, on their machines: the claims stand beside the techniques in this table;"
    " none of them is taken for a measurement of ours.",
)
_RECIPE = "A search around it; the file says what is fixed as there, and what deviates."
_STREAMING = "loaders.dataloader"

INVENTORY: dict[int, Item] = {
    1: Item("CIFAR-10", ("datasets.cifar10",)),
    2: Item("CIFAR-100", ("datasets.cifar100",)),
    3: Item(
        "ImageNet",
        ("datasets.image_folder",),
        note="Its terms forbid fetching it by code; a copy in class folders is read.",
    ),
    4: Item(
        "VTAB",
        ("datasets.image_parquet", "datasets.image_folder"),
        note="Named once; each of its 19 tasks is a data set of its own, read from files.",
    ),
    5: Item(
        "COCO, nuScenes, face anti-spoofing",
        about="Mentions only, and not classification of whole images by class: not read.",
    ),
    6: Item(
        "held-out validation set",
        ("split.validation_frac",),
        note="Searches see this part alone; the test part is for certified results.",
    ),
    7: Item("ResNet-50", ("models.resnet50",)),
    8: Item("ViT base, large, huge", ("models.vit",)),
    9: Item("EfficientNet", ("models.efficientnet_b0",), note="S0's code trains B0."),
    10: Item("VGG16-BN", ("models.vgg16_bn",)),
    11: Item("VGG19", ("models.vgg19",)),
    12: Item("VGG19-BN", ("models.vgg19_bn",)),
    13: Item("AlexNet", ("models.alexnet",)),
    14: Item("SqueezeNet", ("models.squeezenet",)),
    15: Item("DenseNet", ("models.densenet121",), note="S1 names no depth."),
    16: Item("ResNet-18", ("models.resnet18",)),
    17: Item("ResNet-20", ("models.resnet20", "models.resnet"), "S3: 93 %; the paper has 91.25 %"),
    18: Item(
        "pre-activation ResNet-20",
        ("models.preact_resnet",),
        "S3: 93.5 % instead of 93 %, as fast",
    ),
    19: Item(
        "S3's best model",
        ("models.preact_resnet", "speedups.stochastic_depth", "recipe.devices"),
        "S3: 5 times as fast with 4 GPUs, 93.4 %",
        about="A stack of three: survival 0.5 in all blocks, and an effective batch of 1024.",
    ),
    20: Item("MobileNet", ("models.mobilenet",)),
    21: Item("plain CNN without max-pooling", ("models.plain_cnn",), "S0: 87.94 % on CIFAR-10"),
    22: Item("hybrid of ResNet and ViT", ("models.hybrid",)),
    23: Item(
        "write it as a 2-D CNN",
        about="Advice to whoever designs a network, not a setting: all models here but the"
        " transformers are 2-D CNNs.",
    ),
    24: Item(
        "S0's recipe for ResNet-50",
        ("search_spaces/seed_resnet50.yaml",),
        "S0: 0.86 → 0.46 h, or 46 minutes by its README; clipping and accumulation differ too",
        about=_RECIPE,
    ),
    25: Item(
        "S0's recipe for ViT",
        ("search_spaces/seed_vit.yaml",),
        "S0: 4.2 → 2.0 h",
        about=_RECIPE,
    ),
    26: Item(
        "S0's recipe for EfficientNet",
        ("search_spaces/seed_efficientnet.yaml",),
        "S0: 1.80 → 1.05 h, 98 % (of its training images; 95.9 % of the test part)",
        about=_RECIPE,
    ),
    27: Item(
        "S3's baseline ResNet-20",
        ("search_spaces/seed_resnet20.yaml",),
        "S3: 162 minutes, 93 %",
        about=_RECIPE,
    ),
    28: Item(
        "schedule of the ResNet paper",
        ("schedules.multi_step.milestones", "search_spaces/seed_resnet20.yaml"),
        about="Drops after 50 % and 75 % of the run: 32k and 48k of 64k steps.",
    ),
    29: Item(
        "S1's SGD, its rate the best of three after one epoch",
        ("optim.sgd.lr",),
        about="A search takes the place of three tries.",
    ),
    30: Item(
        "gradient accumulation",
        ("recipe.accumulation_steps",),
        "S0: 1.9 times as fast together with 31 and 34",
        "The arithmetic of an epoch is the same; only updates are saved, and memory.",
    ),
    31: Item(
        "mixed precision, autocast",
        ("recipe.precision",),
        "S4: half the time",
        about="`bf16` or `fp16` in forward and backward by autocast; weights stay in fp32.",
    ),
    32: Item(
        "dynamic loss scaling",
        ("recipe.init_loss_scale", "recipe.loss_scale_growth_steps"),
        about="torch's GradScaler, with `precision: fp16`; `bf16` needs none.",
    ),
    33: Item(
        "naive half precision",
        ("recipe.precision",),
        "S3: as slow as fp32, 92.8 % instead of 93 %",
        about="`half`: weights and all in fp16, without a master copy or loss scaling; a negative"
        " control.",
    ),
    34: Item(
        "pinned memory",
        (f"{_STREAMING}.pin_memory",),
        "S1: without it 40 % slower on average, VGG16-BN 60 %",
        "Not applicable on a CPU, and to sets that stay on the device (`resident`).",
    ),
    35: Item("loader workers", (f"{_STREAMING}.workers",), "S1: no gain"),
    36: Item(
        "batch size",
        ("recipe.batch_size", "optim.sgd.lr_per_examples"),
        "S1: 128 is best, tiny and huge are slow and inaccurate",
        "`auto` measures the smallest within 3 % of the best throughput.",
    ),
    37: Item(
        "data serving: keep the GPU fed",
        (f"{_STREAMING}.workers", f"{_STREAMING}.prefetch_factor", "loaders.resident"),
        note="`workers: auto` measures the smallest number that keeps waiting below 5 %.",
    ),
    38: Item("GPU utilisation", ("metrics.gpu_utilisation", "metrics.fed_ratio")),
    39: Item(
        "several GPUs",
        ("recipe.devices",),
        "S3: 3.3 times as fast with 4, 92 % instead of 93 %",
    ),
    40: Item(
        "linear scaling of the rate",
        ("optim.sgd.lr_per_examples",),
        about="`lr` is the rate for so many examples a step, and grows with the effective batch.",
    ),
    41: Item(
        "gradual warm-up",
        ("schedules.constant.warmup_frac", "schedules.multi_step.warmup_frac"),
    ),
    42: Item(
        "stochastic depth",
        ("speedups.stochastic_depth",),
        "S3: 1.8 times as fast, 93.1 % instead of 93 %; needs a survival of 0.5 in all blocks,"
        " linear decay cannot pass 1.38",
        "torchvision's and timm's compute what they drop and save no time.",
    ),
    43: Item(
        "pre-activation",
        ("models.preact_resnet",),
        "S3: 93.5 % instead of 93 %, as fast",
    ),
    44: Item(
        "Boosted ResNet",
        ("speedups.boosted",),
        "S3: others report 3 times as fast; its own try stopped at 88 %",
    ),
    45: Item("YellowFin", ("optim.yellowfin",), "S3: others report 1.5 times as fast"),
    46: Item("closed-loop YellowFin", ("optim.yellowfin.closed_loop",)),
    47: Item(
        "meProp",
        ("speedups.meprop",),
        "its paper: backward of linear layers 5.9 times as fast on a CPU",
    ),
    48: Item("SWATS", ("optim.swats",), "S0: little overhead, no further settings"),
    49: Item("Adam", ("optim.adam",), "S1: converges faster than SGD"),
    50: Item("SGD", ("optim.sgd",), "S1: generalises better than Adam"),
    51: Item("AdamW", ("optim.adamw",), "S4: with one-cycle, where to begin"),
    52: Item(
        "SGD with momentum and a constant rate",
        ("schedules.constant", "optim.sgd.momentum"),
        "S4: one number to tune",
    ),
    53: Item("step drops", ("schedules.multi_step",), "S4: a reliable trick"),
    54: Item("drop when learning has stalled", ("schedules.reduce_on_plateau",)),
    55: Item("one-cycle", ("schedules.one_cycle", "schedules.one_cycle_fastai")),
    56: Item(
        "re-check the optimizer after every other change",
        about="What a search does: rates are searched together with the techniques, never before"
        " them.",
    ),
    57: Item("Kaiming initialisation", ("speedups.kaiming",)),
    58: Item("focal-loss prior bias", ("speedups.focal",)),
    59: Item(
        "pretraining on another data set or task",
        ("speedups.pretrain_other", "models.resnet50.pretrained", "models.resnet20.weights_file"),
        about="Published weights, or a file's from a training before, are not on the clock.",
    ),
    60: Item(
        "pretraining on a subset of the same data set",
        ("speedups.pretrain_subset",),
        note="It is on the clock; `init_s` in a run's record is its share.",
    ),
    61: Item(
        "pretrained against untrained",
        ("models.resnet50.pretrained", "tune-speed train --against"),
        "S1: 73.8 % after one epoch against 1 to 22 %",
    ),
    62: Item(
        "repeat-factor sampling",
        ("orders.repeat_factor",),
        note="No effect on classes of equal size; `workload.split.long_tail` makes unequal ones.",
    ),
    63: Item("several tasks, easiest first", ("speedups.easiest_first",)),
    64: Item("curriculum of samples", ("orders.curriculum",)),
    65: Item("progressive resizing", ("speedups.progressive_resizing",)),
    66: Item("dropout removal", ("speedups.dropout_removal",), "S4: significantly faster"),
    67: Item(
        "gradient clipping",
        ("recipe.clip_value", "recipe.clip_norm"),
        note="S0 clips by value at 0.01, in the run without techniques alone.",
    ),
    68: Item("weight decay", ("optim.sgd.weight_decay", "optim.adamw.weight_decay")),
    69: Item(
        "out of memory",
        (
            "recipe.effective_batch_size",
            "tests/training/test_objective.py::test_real_out_of_memory_halves_the_micro_batch",
        ),
        about="Half the micro-batch and double the accumulation, whenever memory runs out; S2's"
        " advice to accumulate less would cure nothing.",
    ),
    70: Item(
        "tuners: genetic algorithm, by history, XGBoost, TVM and cuDNN",
        ("search.sampler", "search.warm_start", "recipe.compile", "recipe.deterministic"),
        about="`nsga2` is a genetic algorithm, `warm_start` learns from history, `deterministic:"
        " false` lets cuDNN tune its kernels; there is no XGBoost tuner and no TVM.",
    ),
    71: Item(
        "better hardware, the cloud",
        ("tune-speed doctor",),
        about="Not a setting: every result carries its device, and only one device's are ranked"
        " together.",
    ),
    72: Item(
        "exclusive use of the GPU",
        ("tune-speed certify",),
        about="A certification has the device to itself; a search on a shared one counts steps"
        " times isolated step time.",
    ),
    73: Item(
        "S0's memory equations 5 to 7",
        about="Not built in: they describe a memory network, not page-locked memory, and no model"
        " here is one.",
    ),
    74: Item(
        "stacking techniques",
        ("search_spaces/techniques.yaml", "metrics.expected_speed_up", "metrics.synergy"),
        "S3: 5 times as fast, and 5.94 by the product of the parts",
        about="One technique a slot; those that exclude each other are refused with the reason.",
    ),
    75: Item("accuracy", ("metrics.accuracy",)),
    76: Item(
        "F1 score",
        ("metrics.macro_f1", "metrics.micro_f1"),
        "S0: equal to the accuracy to the last digit, as it is micro-averaged",
    ),
    77: Item("execution time", ("metrics.execution_s", "metrics.train_s")),
    78: Item("time to target", ("metrics.time_to_target_s",)),
    79: Item("training and validation loss", ("metrics.loss", "metrics.train_loss")),
    80: Item("S_mixed and speed-up", ("metrics.speed_up",)),
    81: Item("throughput", ("metrics.images_per_s", "metrics.flop_per_s")),
    82: Item(
        "quantisation error",
        about="Not built in: no run could use it, as `precision` is judged by accuracy and time.",
    ),
    83: Item(
        "S0's dynamic loss scale",
        about="Not built in: no library scales so; `precision: fp16` has torch's GradScaler.",
    ),
    84: Item("memory in GiB", ("metrics.peak_memory_gib",)),
    85: Item("memory as a share", ("metrics.peak_memory_frac",)),
    86: Item("utilisation", ("metrics.gpu_utilisation", "metrics.fed_ratio")),
    87: Item("time per epoch", ("metrics.epoch_s",)),
    88: Item(
        "epochs to convergence",
        ("metrics.epochs_to_convergence",),
        "S1: 100, pretrained or not",
    ),
    89: Item("mean and spread over runs", ("metrics.mean_interval",)),
    90: Item("learning curves", ("metrics.learning_curve",)),
    **dict.fromkeys(range(91, 98), _OTHERS_FIGURES),
    98: Item(
        "S3's results",
        about="Its figures stand beside the techniques in this table; 1.8 · 3.3 is the 5.94 that it"
        " prints as 1.8 · 3.9.",
    ),
    99: Item(
        "speed-ups of others that S3 names: 3, 2, 1.5 and 2 times",
        ("speedups.boosted", "speedups.stochastic_depth", "optim.yellowfin", "recipe.precision"),
        about="Unchecked by S3; each is a technique here that can be timed.",
    ),
    100: Item(
        "S2's first three experiments",
        (
            "search_spaces/replications/first_three_experiments.yaml",
            "search_spaces/seed_resnet50.yaml",
            "tune-speed train --against",
        ),
        about="The recipe as it is, then with accumulation and pinned memory, then with mixed"
        " precision too.",
    ),
    101: Item(
        "how accumulation depends on network and batch",
        (
            "search_spaces/replications/accumulation_by_batch.yaml",
            "recipe.accumulation_steps",
            "recipe.batch_size",
        ),
        about="Accumulation over 1 to 8 micro-batches of 32 to 128 images, on three networks.",
    ),
    102: Item(
        "what mixed precision costs in accuracy",
        (
            "search_spaces/replications/amp_by_dataset.yaml",
            "recipe.precision",
            "tune-speed train --against",
        ),
        about="fp32, fp16 and bf16 on three data sets: what it saves, and what it costs in"
        " accuracy.",
    ),
    103: Item(
        "how pinning depends on the access pattern",
        (
            "search_spaces/replications/pinned_memory_patterns.yaml",
            f"{_STREAMING}.pin_memory",
        ),
        about="Many small, few large and images of several sizes, with and without workers; it"
        " needs a GPU.",
    ),
    104: Item(
        "S2's check 1: five runs with their spread",
        (
            "search_spaces/replications/five_repeats.yaml",
            "tune-speed train --seeds",
            "metrics.mean_interval",
        ),
        about="EfficientNet-B0 with five seeds: mean, standard deviation and interval.",
    ),
    105: Item(
        "S2's check 2: ablation",
        (
            "search_spaces/replications/factorial.yaml",
            "search_spaces/techniques.yaml",
            "metrics.synergy",
        ),
        about="All eight combinations of accumulation, mixed precision and pinned memory, with"
        " interactions.",
    ),
    106: Item(
        "S2's check 3: MobileNet on held-out images",
        (
            "search_spaces/replications/mobilenet_held_out.yaml",
            "models.mobilenet",
            "split.validation_frac",
        ),
        about="MobileNet with the settings of other networks, judged on images that nothing was"
        " chosen by.",
    ),
    107: Item(
        "S2's three quick questions",
        (
            "search_spaces/replications/quick_answers.yaml",
            "recipe.effective_batch_size",
            "tests/training/step/test_step.py::test_fp16_step_with_an_infinite_gradient_is_skipped_and_halves_the_scale",
        ),
        about="16 · 4 = 64 samples a step; fp16 loses gradients below 2^-24, which scaling lifts;"
        " pageable memory is staged through a pinned buffer before it goes to a GPU.",
    ),
    108: Item(
        "signs of failure",
        (
            "search_spaces/replications/break_conditions.yaml",
            "tests/training/test_train.py::test_loss_that_is_not_finite_ends_the_run_as_diverged",
            "tests/training/test_train.py::test_no_step_waits_for_the_device",
            "tests/training/autotune/test_serving.py::test_device_is_starved_where_all_cores_are_too_few",
        ),
        about="Divergence, hidden waits and starving are provoked by tests; using up page-locked"
        " memory is not, as it would stop the machine.",
    ),
    109: Item(
        "S2's limitations and confidence",
        ("search_spaces/replications/confidence.yaml",),
        about="Judgements on S0; what our own runs say of speed, of combinations and of other"
        " networks.",
    ),
    110: Item(
        "S1's study of pinned memory",
        (
            "search_spaces/replications/pinned_memory_networks.yaml",
            f"{_STREAMING}.pin_memory",
        ),
        about="Pinned memory off and on, over five networks; it needs a GPU.",
    ),
    111: Item(
        "S1's study of workers",
        (
            "search_spaces/replications/workers.yaml",
            f"{_STREAMING}.workers",
        ),
        about="0 to 8 worker processes.",
    ),
    112: Item(
        "S1's sweep of batch sizes",
        (
            "search_spaces/replications/batch_sweep.yaml",
            "recipe.batch_size",
        ),
        about="Batches of 16 to 1024 images: time per epoch and accuracy.",
    ),
    113: Item(
        "S1's comparison of two machines",
        (
            "search_spaces/replications/two_machines.yaml",
            "tune-speed leaderboard",
        ),
        "S1: one 40 % faster; its tables say 1.2 times, with VGGs about 1",
        about="Boards are kept apart by device, to be read side by side.",
    ),
    114: Item(
        "S1's study of epochs to convergence",
        (
            "search_spaces/replications/epochs_to_convergence.yaml",
            "metrics.epochs_to_convergence",
            "models.resnet50.pretrained",
        ),
        about="Accuracy over epochs, from pretrained and from fresh weights.",
    ),
    115: Item(
        "S1's proposal: VGG19-BN on ImageNet with and without mixed precision",
        ("search_spaces/replications/vgg19_amp.yaml", "models.vgg19_bn", "recipe.precision"),
        about="CIFAR stands in for ImageNet, which may not be fetched by code.",
    ),
    116: Item(
        "S3's stacking experiment",
        (
            "search_spaces/replications/stacking.yaml",
            "search_spaces/techniques.yaml",
            "metrics.expected_speed_up",
        ),
        about="Each step alone and all together, with the product of the parts beside.",
    ),
    117: Item(
        "S3's unfinished: Boosted ResNet, YellowFin, meProp",
        (
            "search_spaces/replications/unfinished_methods.yaml",
            "speedups.boosted",
            "optim.yellowfin",
            "speedups.meprop",
        ),
        about="Each of them against the baseline, and in the stack.",
    ),
    118: Item(
        "the same methods on other networks",
        ("search_spaces/replications/other_networks.yaml", "models.timm", "models.torchvision"),
        about="Accumulation, mixed precision and pinned memory, on networks that S0 left out.",
    ),
    119: Item(
        "which of S0's models wins on accuracy, F1 and time",
        (
            "search_spaces/replications/which_model.yaml",
            "tune-speed leaderboard",
            "search_spaces/seed_resnet50.yaml",
        ),
        about="ResNet-50, ViT and EfficientNet on one device: accuracy, macro F1 and time.",
    ),
    120: Item(
        "tools: Ignite, apex, Keras, nvidia-smi",
        about="Torch has what apex had; the loop is our own in place of Ignite; nvidia-smi is asked"
        " for clocks and limits in certificates.",
    ),
    121: Item(
        "order of a training step",
        (
            "tune_speed/training/step/step.py",
            "tests/training/step/test_step.py::test_gradient_is_clipped_after_it_was_unscaled",
        ),
        about="Autocast forward, loss over the whole step's samples, scaled backward; once a step"
        " unscale, clip, step, update.",
    ),
}
"""By the number in the inventory, 1 to 121."""
