"""The sections `replication` and `scale`: a published experiment, and our figures next to it."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tune_speed.core.config import Config

FigureName = Literal[
    "speed_up", "expected_time_ratio", "time_increase", "time_saved", "accuracy", "accuracy_gain",
    "macro_f1", "epoch_s", "peak_memory_gib", "synergy", "success_rate", "epochs_to_convergence",
]  # fmt: skip
UnitName = Literal["×", "%", "points", "s", "GiB", "GB", "epochs"]
CheckName = Literal[
    "samples_per_step", "fp16_loses", "scaling_saves", "weight_moves", "pinned_is_faster",
    "host_continues", "hidden_syncs", "starving_is_seen", "nothing_is_seen",
]  # fmt: skip
ProfileName = Literal["cpu", "gpu"]
"""Profiles that a file may have; `full` is the file as it is."""

UNITS: dict[FigureName, tuple[UnitName, ...]] = {
    "speed_up": ("×",), "expected_time_ratio": ("×",), "synergy": ("×",),
    "time_increase": ("%",), "time_saved": ("%",), "accuracy_gain": ("points",),
    "accuracy": ("%",), "macro_f1": ("%",), "success_rate": ("%",),
    "epoch_s": ("s",), "peak_memory_gib": ("GiB", "GB"), "epochs_to_convergence": ("epochs",),
}  # fmt: skip
"""Units that a figure can be given in; the first one is meant where none is given."""

NO_EFFECT: dict[FigureName, float] = {
    "speed_up": 1, "expected_time_ratio": 1, "synergy": 1,
    "time_increase": 0, "time_saved": 0, "accuracy_gain": 0,
}  # fmt: skip
"""Figures of an arm against the base, and what each is where the arm is as the base."""

# Least and greatest number of an experiment or a doubt on the sheet of the source documents.
ITEMS = (91, 121)

Name = Annotated[str, Field(min_length=1)]
Overrides = dict[str, Any]
"""Values by path, as `--set` takes them: `{epochs: 2, workload.split.train_samples: 1000}`."""
Parts = dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")], Overrides]


class OursConfig(Config):
    """Which figure of ours is compared with the published one."""

    part: str = ""
    """Part of the replication, such as `cifar10`; empty where it has none."""
    arm: Name
    """Arm of the ablation: `base`, or the labels of its levels joined by ` + `, in any order."""
    figure: FigureName
    """What is compared. Against the base: `speed_up` is its time per epoch over the arm's,
    `time_increase` how much longer it takes than the arm [%], `time_saved` how much less the arm
    takes [%], `expected_time_ratio` its time to target over the arm's, misses included,
    `accuracy_gain` the arm's accuracy less its own [points], `synergy` the arm's speed-up over the
    product of its parts'. Of the arm alone: the others, at the end of its runs."""

    @model_validator(mode="after")
    def _is_beside_base(self) -> "OursConfig":
        if self.arm == "base" and self.figure in NO_EFFECT:
            raise ValueError(f"`{self.figure}` is against the base: `arm` must be another")
        return self


class ClaimConfig(Config):
    """One published figure, and ours to compare with it."""

    says: Name
    """What the source says, in our words."""
    ours: OursConfig
    """Our figure to compare with it."""
    paper: float | None = None
    """The figure, in `unit`; `tune-speed list papers` has the sources. null: the source has none,
    and ours is shown alone."""
    unit: UnitName | None = None
    """Unit of the figure; null: `×` for ratios, `%` for shares, `points` (of 100) for gains, `s`,
    `GiB`, `epochs`."""
    source: Name
    """Where it is, such as `S0, Table I`."""
    defects: list[Name] = Field(default=[])
    """What is known to be wrong with it, a sentence each."""

    @model_validator(mode="after")
    def _has_a_unit_of_its_figure(self) -> "ClaimConfig":
        units = UNITS[self.ours.figure]
        if self.unit is not None and self.unit not in units:
            must = f"`unit` must be {' or '.join(units)} for `{self.ours.figure}`"
            raise ValueError(f"{must}, not {self.unit}")
        return self

    @property
    def shown_unit(self) -> UnitName:
        return self.unit or UNITS[self.ours.figure][0]


class CheckConfig(Config):
    """A question that is answered without training."""

    question: Name
    """What is asked."""
    expected: Name
    """The answer that is expected."""
    check: CheckName
    """How it is answered."""


class ReplicationConfig(Config):
    """An experiment of a source document."""

    items: list[Annotated[int, Field(ge=ITEMS[0], le=ITEMS[1])]] = Field(default=[])
    """Numbers of the experiments on the sheet of the source documents that this one answers."""
    title: Name
    """What it is, in one line."""
    question: Name
    """Its question, in one sentence."""
    source: str = ""
    """Where it is from, such as `S0`."""
    parts: Parts = Field(default={})
    """Ablations of their own, by name, with the values that each changes about the file; empty:
    the file is the only one."""
    claims: list[ClaimConfig] = Field(default=[])
    """Published figures, and ours to compare with each."""
    checks: list[CheckConfig] = Field(default=[])
    """Questions that are answered without training."""
    caveats: list[Name] = Field(default=[])
    """What is known to be wrong with the source, or unlike it here: one sentence each."""

    @model_validator(mode="after")
    def _asks_something(self) -> "ReplicationConfig":
        if not self.claims and not self.checks:
            raise ValueError("must have `claims` or `checks`")
        return self


class ScaleConfig(Config):
    """A profile: the same experiment, smaller."""

    about: Name
    """What is smaller, in one sentence."""
    set: Overrides = Field(default={})
    """Values that it changes about the file."""
    parts: Parts | None = None
    """Replaces `replication.parts`; null: nothing does."""


Scale = dict[ProfileName, ScaleConfig]
"""The section `scale` of a study file."""
