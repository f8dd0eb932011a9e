"""What every room rests on, without torch: errors, configurations, records, statistics, logs."""
