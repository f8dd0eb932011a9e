"""The networks themselves, which need torch."""
