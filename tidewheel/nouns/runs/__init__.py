"""Bulk operations on runs."""
