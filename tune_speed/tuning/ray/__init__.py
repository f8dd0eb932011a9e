"""Ray runs the trials: clusters, nodes, Ray Tune, processes and their liveness.

Private names of Ray are in `compat` alone.
"""
