"""The figures of the source documents, and ours next to them."""
