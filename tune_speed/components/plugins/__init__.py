"""A user's own entries of our tables: found, checked, hashed, loaded and shipped.

A plugin is a Python file or an installed distribution; `registry` says how it is loaded. Its
authors import from `tune_speed.components`.
"""
