"""What the trials of a search teach: a model, what is recommended, and what may be run again."""

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr

from tune_speed.core.records import Recommended, Status
from tune_speed.core.stats import wilson_interval
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.acquisition import Candidate, Model
from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.expected_time import doubt, log_expected_s
from tune_speed.tuning.policy.gaussian_process import one_thread
from tune_speed.tuning.policy.history import History
from tune_speed.tuning.policy.settings import Parts
from tune_speed.tuning.policy.trials import Known, Trial

NUM_FAVOURITES = 100
NUM_TRIED = 16


class Learned:
    """What is known of configurations, as of the last trial that ended."""

    def __init__(self, history: History, parts: Parts, *, seed: int) -> None:
        self._history, self._parts, self._seed = history, parts, seed
        self._num_seen = -1
        self.model: Model | None = None
        """None before three trials fitted."""
        self.tried: list[Candidate] = []
        """Configurations of the least expected times, which may be run again."""

    @property
    def favourites(self) -> tuple[Recommended, ...]:
        self.update()
        return self._history.favourites or base.alone(self._history.leader)

    def update(self) -> None:
        """Fits the model to what has ended, and finds what is recommended."""
        history, parts = self._history, self._parts
        number = history.ended.num
        if self._num_seen == number:
            return
        with one_thread():
            evidence = history.evidence(graded=parts.graded, memory=parts.memory)
            self._num_seen, model = number, None
            if evidence.fits.sum() >= 3:
                model = Model(
                    history.encoder,
                    evidence,
                    has_cost=history.by_share,
                    settings=parts.acquisition,
                    rng=np.random.default_rng([self._seed, number, 11]),
                )
            self.model = model
            history.favourites, self.tried, known = (), [], history.ended.known()
            if known and history.knows_length and model is not None:
                history.favourites = self._by_the_model(model, known)
            elif known and not history.target.best:
                known = sorted(known, key=lambda each: each.cautious_s)
                num = 1 if history.knows_length else NUM_FAVOURITES
                history.favourites = tuple(map(_by_their_runs, known[:num]))

    def _by_the_model(self, model: Model, known: Sequence[Known]) -> tuple[Recommended, ...]:
        runs = list(self._history.ended.configurations().values())
        expected, mean, sd, costs = self._log_expected(model, runs)
        # What did not fit has no distance that says how good it is, and will not fit again.
        is_oom = [any(trial.ended.status == Status.OOM for trial in own) for own in runs]
        fit = [i for i in np.argsort(expected, kind="stable") if not is_oom[i]]
        self.tried = [
            Candidate(runs[i][0].units, runs[i][0].proposal.params, float(costs[i]))
            for i in fit[:NUM_TRIED]
        ]
        met = [i for i, own in enumerate(runs) if any(trial.met for trial in own)]
        expected, mean, sd = expected[met], mean[met], sd[met]
        noise_sd = max(model.process.noise_sd, 1e-9)
        chance = ndtr(mean / np.hypot(sd, noise_sd))
        low, high = (ndtr((mean + z * sd) / noise_sd) for z in (-1.96, 1.96))
        order = np.argsort(expected, kind="stable")[:NUM_FAVOURITES]
        time_s = np.exp(expected - doubt(chance))
        return tuple(
            known[i].recommended(
                known[i].fastest,
                chance=chance[i],
                chance_low=low[i],
                chance_high=high[i],
                expected_s=time_s[i],
            )
            for i in order
        )

    def _log_expected(
        self, model: Model, runs: Sequence[Sequence[Trial]]
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Returns ln E, mean and deviation of the distance at the end, and costs [s]: (C,) each."""
        units = np.array([own[0].units for own in runs])
        costs = np.array([sum(t.likely_s for t in own) / len(own) for own in runs])
        mean, sd = model.process.predict(model.points(units, costs))
        expected = log_expected_s(
            mean,
            np.hypot(sd, model.process.noise_sd),
            log_cost=np.log(model.likely_s(costs)),
            fractions=np.array(self._history.fractions),
        )
        return expected, mean[:, 0], sd, costs


def _by_their_runs(known: Known) -> Recommended:
    hits, runs = known.hits, len(known.runs)
    low, high = wilson_interval(hits, runs)
    return known.recommended(
        known.fastest,
        chance=hits / runs,
        chance_low=low,
        chance_high=high,
        expected_s=known.expected_s,
    )
