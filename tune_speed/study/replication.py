"""The sections `replication` and `scale`: a published experiment, and our figures next to it."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from tune_speed.core.config import Config

FigureName = Literal[
    "speed_up",
    "expected_time_ratio",
    "time_increase",
    "time_saved",
    "accuracy",
    "accuracy_gain",
    "macro_f1",
    "epoch_s",
    "peak_memory_gib",
    "synergy",
    "success_rate",
    "epochs_to_convergence",
]
UnitName = Literal["×", "%", "points", "s", "min", "h", "GiB", "GB", "epochs"]
CheckName = Literal[
    "effective_batch", "fp16_underflow", "pinned_copy", "hidden_syncs", "loader_starvation"
]
ProfileName = Literal["cpu", "gpu"]
"""Profiles that a file may have; `full` is the file as it is."""

UNITS: dict[FigureName, tuple[UnitName, ...]] = {
    "speed_up": ("×",),
    "expected_time_ratio": ("×",),
    "time_increase": ("%",),
    "time_saved": ("%",),
    "accuracy": ("%",),
    "accuracy_gain": ("points",),
    "macro_f1": ("%",),
    "epoch_s": ("s", "min", "h"),
    "peak_memory_gib": ("GiB", "GB"),
    "synergy": ("×",),
    "success_rate": ("%",),
    "epochs_to_convergence": ("epochs",),
}
"""Units that a figure can be given in; the first one is meant where none is given."""

AGAINST_BASE: tuple[FigureName, ...] = (
    "speed_up",
    "expected_time_ratio",
    "time_increase",
    "time_saved",
    "accuracy_gain",
    "synergy",
)
"""Figures of an arm against the base, which the base itself does not have."""

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
        if self.arm == "base" and self.figure in AGAINST_BASE:
            raise ValueError(f"`{self.figure}` is against the base: `arm` must be another")
        return self


class PublishedConfig(Config):
    """A row of `tune-speed list paper`: the columns that identify it."""

    source: Name
    """Short citation, such as `Nokhwal et al. 2023`."""
    table: Name
    """Table or section of the source."""
    metric: Name
    """What was measured."""
    model: str = ""
    """Network as the source names it."""
    dataset: str = ""
    """`CIFAR-10`, `CIFAR-100`, `both`, `most`, or empty."""
    setting: str = ""
    """Which of the source's arms."""
    over: Name | None = None
    """Setting of the same table that this one is compared with: its figure over this one's, or for
    a gain, this one's less its figure. null: the figure itself."""
    over_model: Name | None = None
    """Network of `over`, where it is another."""
    per_epoch: bool = False
    """Whether the figure is divided by the epochs that the same setting ran."""

    @model_validator(mode="after")
    def _is_figure_or_ratio(self) -> "PublishedConfig":
        if self.over_model is not None and self.over is None:
            raise ValueError("`over_model` must come with `over`")
        return self


class ClaimConfig(Config):
    """One published figure, and ours to compare with it."""

    says: Name
    """What the source says, in our words."""
    ours: OursConfig
    """Our figure to compare with it."""
    paper: float | None = None
    """The figure, in `unit`. null: it is looked up as `published` says; without that too, the
    source has none, and ours is shown alone."""
    published: PublishedConfig | None = None
    """Where the figure is among those of the source documents; null: it is `paper`."""
    unit: UnitName | None = None
    """Unit of the figure; null: that of `published`, or `×` for ratios, `%` for shares, `points`
    (of 100) for gains, `s`, `GiB`, `epochs`."""
    source: str = ""
    """Where it is, such as `S0, Table I`; empty: as `published` says, and only with it."""
    defect: str = ""
    """What is known to be wrong with it, other than with the published row."""

    @model_validator(mode="after")
    def _has_one_figure_at_most(self) -> "ClaimConfig":
        if self.paper is not None and self.published is not None:
            raise ValueError("must have either `paper` or `published`")
        if self.published is None and not self.source.strip():
            raise ValueError("`source` must be given where there is no `published`")
        units = UNITS[self.ours.figure]
        if self.unit is not None and self.unit not in units:
            must = f"`unit` must be {' or '.join(units)} for `{self.ours.figure}`"
            raise ValueError(f"{must}, not {self.unit}")
        return self


class ReplicationConfig(Config):
    """An experiment of a source document."""

    items: list[Annotated[int, Field(ge=ITEMS[0], le=ITEMS[1])]] = Field(default=[])
    """Numbers of the experiments on the sheet of the source documents that this one answers."""
    title: Name
    """What it is, in one line."""
    question: Name
    """Its question, in one sentence."""
    source: str = ""
    """Where it is from, such as `S0`; empty: the sources of its claims."""
    parts: Parts = Field(default={})
    """Ablations of their own, by name, with the values that each changes about the file; empty:
    the file is the only one."""
    claims: list[ClaimConfig] = Field(default=[])
    """Published figures, and ours to compare with each."""
    checks: list[CheckName] = Field(default=[])
    """Questions that are answered without training."""
    caveats: list[Name] = Field(default=[])
    """What is known to be wrong with the source, or unlike it here: one sentence each."""

    @field_validator("items", "checks")
    @classmethod
    def _are_distinct(cls, values: list[Any]) -> list[Any]:
        if len(set(values)) < len(values):
            raise ValueError("must be different from one another")
        return values

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
