"""One training: recipe and workload in, a run's result out."""
