"""What there is to choose from: tables, fields, techniques."""
