"""Schedules: pure functions from a schedule to its occurrences. No I/O."""
