"""A running search on the screen.

`loop.watch` reads a study again and again; `status.glance` says how it is, `screen` draws that.
"""
