"""What is done with recipes beside a search: certification, ablation, profiling, replication."""
