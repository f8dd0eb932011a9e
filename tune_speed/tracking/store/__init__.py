"""Opening a store: its address, its kind, its deadlines and its errors."""
