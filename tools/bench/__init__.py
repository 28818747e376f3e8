"""Measure this machine: each figure beside its baseline of the same round."""
