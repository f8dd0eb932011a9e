"""Experiments with recipes next to a search: certification, ablation, profiling, replication.

In this folder are trainings of one recipe or of two in turns (`rerun`), and the statistics of
several runs (`run_summary`, `paired_test`); each larger experiment has a room of its own.
"""
