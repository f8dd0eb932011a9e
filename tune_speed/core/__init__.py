"""What every room rests on.

Errors, configuration, records, targets, statistics, the event log. It imports no other room and
no torch.
"""
