"""Bulk work that schedulers do."""
