"""Workflows: occurrences of a root, with the runs of its graph of jobs."""
