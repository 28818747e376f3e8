"""Handlers in processes of their own: pool, process, worker, protocol, supervisor."""
