"""How several devices share one order of samples, so that each makes only its own batches."""

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


class Share(NamedTuple):
    """What one device takes of every optimizer step; by default everything.

    A step of `samples_per_step` samples is cut into `size` stretches of equal length, in order, so
    that device number r takes the stretch that a single device would gather in the r-th part of its
    micro-batches. An epoch's ragged last step is cut as evenly as it goes, the first devices having
    one sample more; where it has fewer samples than there are devices, the last ones have none.
    """

    rank: int = 0
    """Number of the device, from 0."""
    size: int = 1
    """Devices."""
    samples_per_step: int = 0
    """Samples of an optimizer step over all devices, a multiple of `size`."""

    def counts(self, num_samples: int) -> tuple[int, ...]:
        """Returns how many of so many samples, from a step's begin on, each device takes."""
        if self.size == 1:
            return (num_samples,)
        steps, rest = divmod(num_samples, self.samples_per_step)
        whole = steps * (self.samples_per_step // self.size)
        even, more = divmod(rest, self.size)
        return tuple(whole + even + (rank < more) for rank in range(self.size))

    def of(self, epoch: NDArray[Number]) -> NDArray[Number]:
        """Returns what the device takes along the last axis, over which an epoch runs."""
        if self.size == 1:
            return epoch
        steps, rest = divmod(epoch.shape[-1], self.samples_per_step)
        length = self.samples_per_step // self.size
        first = np.arange(steps)[:, None] * self.samples_per_step + self.rank * length
        whole = (first + np.arange(length)).ravel()
        counts = self.counts(rest)
        begin = steps * self.samples_per_step + sum(counts[: self.rank])
        last = np.arange(begin, begin + counts[self.rank])
        return epoch.take(np.concatenate([whole, last]), axis=-1)


WHOLE = Share()
"""Everything, for the only device."""
