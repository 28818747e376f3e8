"""Explanations: why a job fires or does not fire at an instant."""
