"""The scenarios: one module for each, with the figures that it measures."""
