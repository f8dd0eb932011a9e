"""Writing trials to MLflow: in batches, off the trial's path, each once."""
