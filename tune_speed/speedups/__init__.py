"""Speed-ups that act on model, batch, loss or batch selection; none has a file of its own yet.

Those that are plain settings are fields of the recipe: `tune-speed list speedups` names them.
"""
