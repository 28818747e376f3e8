"""Tenants: their limits, usage, retention, pause and deletion."""
