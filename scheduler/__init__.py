"""Decides what is due and writes the runs."""
