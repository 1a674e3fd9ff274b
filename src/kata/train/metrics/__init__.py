"""Metrics of a run: meter, progress, trackers, bottlenecks and bad steps."""
