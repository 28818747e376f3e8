"""Consumes run requests, claims and executes them, and records how they end."""
