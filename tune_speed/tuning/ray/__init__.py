"""The only place that imports Ray: trial processes, cluster, placement, liveness."""
