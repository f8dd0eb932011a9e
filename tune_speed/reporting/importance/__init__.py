"""Which parameters matter, from the trials of a study.

`importance.importance` answers three questions by main effects of a forest (`main_effects`), over
the region that was tried, conditional parameters included.
"""
