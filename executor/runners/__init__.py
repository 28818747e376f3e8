"""Runners, one per kind of target."""
