"""Certification: the fastest trials of a study run again, with fresh seeds, alone on the device.

`schedule` says who runs next, and `elimination` who is dropped early; `assemble` makes certified
records with their certificates.
"""
