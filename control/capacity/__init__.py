"""Capacity of an installation: measured costs, the model, the simulation of a hot second."""
