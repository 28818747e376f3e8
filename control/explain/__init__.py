"""Explanations: why a job fires or does not fire at an instant.

Each function reads by a connection in REPEATABLE READ, so that all rows are of one snapshot.
"""
