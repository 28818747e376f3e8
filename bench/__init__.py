"""Measures this machine: each figure beside its floor in the same run, since machines differ and ratios carry over."""
