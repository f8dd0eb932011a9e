"""Settings of the policy `time_to_target`, with the values that benchmarks decided."""

from dataclasses import dataclass, field

from tune_speed.study.settings import UntilConfig


@dataclass(frozen=True)
class AcquisitionSettings:
    """Figures of the model and its acquisition function."""

    num_candidates: int = 256
    """Half of them drawn evenly, half around the best trials."""
    fit_points: int = 64
    """Trials to which the hyperparameters are fitted, at most."""
    max_points: int = 300
    """Trials that the model is conditioned on, at most."""
    cost_power: float = 0.5
    """κ, once there is a leader."""
    early_cost_power: float = 0.3
    """κ before."""
    margin: float = 0.5
    """How far beyond the best so far θ lies."""
    cost_feature: bool = True
    """Whether the cost is an input of the model, next to the configuration, less what is due to
    choices: a longer run of a network comes nearer the target, that of a slower one does not."""
    least_gain: float = 0.003
    """Gain, of ln E*, that another run of what was tried must promise."""
    least_share: float = 0.05
    """Share of the noise's variance that runs far from the target have at least."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts, each of which can be left out to see what it is worth."""

    cost: bool = True
    """Replaces proposals whose cost, known beforehand, is too high to win."""
    # Without it, best times are 1.42 (fixed length) and 2.26 (anytime) times as long; these and the
    # ratios below are measured in tests/benchmarks, where less than 15 % is noise.
    graded: bool = True
    """Grades misses by their distance to the target; otherwise all misses are alike."""
    cap: bool = True
    """Stops a trial whose clock is past the leader's time."""
    # Without it, best times in anytime mode are 1.69 times as long.
    rungs: bool = True
    """Stops a trial whose forecast is below most at the same clock; where the length is free."""
    memory: bool = True
    """Learns which configurations do not fit into memory."""
    share_first: bool = True
    """Where the length is free, compares runs by the share of their schedule until one has met the
    target, and by their clock from then on."""
    num_start: int = 12
    """Quasi-random proposals before the first of the model."""
    start_runs: float = 1.0
    """The start ends earlier when it took as long as so many of the longest runs."""
    # With 1, it takes 1.41 times as long to come near the best in anytime mode.
    start_pool: int = 3
    """Each of these is the cheapest of so many."""
    explore_every: int = 10
    """After the start, one in so many proposals is quasi-random; 0: none."""
    no_chance: float = 0.005
    """Where the model gives no configuration a larger chance, one is drawn without it."""
    audit_share: float = 0.05
    """Share of trials that no rung stops, so that rungs can be checked."""
    rung_factor: float = 3.0
    """Rungs lie at the time to beat over this, its square, its cube and its fourth power."""
    # With a half, it takes 1.68 times as long to come near the best in anytime mode.
    rung_keeps: float = 0.25
    """Share that continues past a rung."""
    rung_runs: int = 2
    """Other runs that must have been seen at a rung."""
    repeats: bool = True
    """Runs what was tried again where that is worth more than what was not."""
    sure_runs: int = 4
    """Runs that a favourite gets: at the end of the search, and where the length is free before
    anything new is tried."""
    hold_back: float = 0.15
    """Share of the budget, at its end, in which only what was tried is run; 0: none."""
    until: UntilConfig | None = None
    """When the search ends before its budget does; None: never."""
    cost_margin: float = 0.9
    """A running trial is stopped for its projected end only if this much of it is too long."""
    # A proposal takes 42 ms with 500 trials, and took 0.8 s with 20,000.
    most_trials: int = 400
    """Trials that the model and the rungs keep, once there are twice as many."""
    acquisition: AcquisitionSettings = field(default_factory=AcquisitionSettings)
