"""The data sets that a workload can name."""
