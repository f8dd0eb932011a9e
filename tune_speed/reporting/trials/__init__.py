"""Trials one by one.

`table` lists those of a study, `comparison` puts several side by side, `text` describes one, and
`recipe_export` writes its recipe to a file that trains it again.
"""
