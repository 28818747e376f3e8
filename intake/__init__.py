"""Turns requests into jobs, timers and triggered runs."""
