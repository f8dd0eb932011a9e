"""Ray runs the trials: clusters, nodes, Ray Tune, processes and their liveness.

`connect` joins or starts a cluster, `Nodes` chooses the nodes with the study's device, `run_search`
has Ray Tune run the controller's proposals in processes (`TrialProcess`), and `ExclusiveDevice`
runs certified trials alone on a device. Private names of Ray are in `compat` alone.
"""
