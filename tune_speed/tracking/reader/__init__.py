"""Reading runs, studies and leaders back from MLflow."""
