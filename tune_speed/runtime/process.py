"""Python's garbage collector, which looks through all that is imported again and again.

Of 3.4 s that the libraries of a search take to import, it takes a fifth.
"""

import gc

USUAL = gc.get_threshold()
PATIENT = (100_000, 50, 50)
"""Objects that are made before it looks through the young ones, and how often it does that before
it looks through older ones; Python's own are 700, 10 and 10."""


def make_patient() -> None:
    """Makes it look seldom: for a process that imports much, and for one that soon ends."""
    gc.set_threshold(*PATIENT)


def settle() -> None:
    """Makes it look as usual again, and never at what is there now: mostly modules, which live on.

    Each look at them takes 0.25 s with torch.
    """
    gc.freeze()
    gc.set_threshold(*USUAL)
