"""How often a trial is begun whose process dies."""

from collections import Counter

# Deaths of a trial in a session through no fault of its own, such as of a node, not counted.
MOST_BLAMELESS = 20


class Attempts:
    """Counts the deaths of each trial since its last progress, in one session.

    Whoever resumes a search may have fixed the cause, so counts start from 0.
    """

    def __init__(self, most: int) -> None:
        """Allows `most` deaths in a row in which a trial gets no further."""
        self._most = most
        self._deaths, self._blameless = Counter[str](), Counter[str]()
        self._furthest = Counter[str]()

    def died(self, trial_id: str, *, saved_step: int | None, is_blameless: bool) -> bool:
        """Counts a death and returns whether the trial is started again.

        It can resume from `saved_step`, or (None) starts from scratch. A death is blameless where
        something else was at fault, such as its node.
        """
        if saved_step is not None and saved_step > self._furthest[trial_id]:
            self._furthest[trial_id] = saved_step
            self._deaths[trial_id] = 0
        if is_blameless:
            self._blameless[trial_id] += 1
            if self._blameless[trial_id] <= MOST_BLAMELESS:
                return True
        self._deaths[trial_id] += 1
        return self._deaths[trial_id] < self._most
