"""The calls of `import tune_speed`, and what they return.

`search`, `train`, `certify` and `ablate` have the commands' options; the command line calls them
and prints the objects that they return, each of which shows itself as text, as HTML and as JSON.
`Results` reads what is stored as pandas frames.
"""
