"""What single changes of a recipe, and several together, do to its time and its scores.

Axes say what is changed, a design says which of the changes are run together, and contrasts of
runs that share a seed say what each of them did.
"""
