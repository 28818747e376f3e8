"""Measurements: figures of this machine, each beside its floor in the same run."""
