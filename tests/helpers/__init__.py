"""What tests share, by the rooms of the package that it is about; `tests` is on the path."""
