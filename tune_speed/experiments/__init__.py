"""Experiments with recipes next to a search: certification, ablation, profiling, replication.

In this folder are trainings of one recipe or of two in turns (`rerun`), the statistics of runs
(`run_summary`), and what takes turns (`session`); each larger experiment has a room of its own.
"""
