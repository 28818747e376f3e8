"""Limits of concurrency keys that operators set, and ordering keys that a failed run blocks."""
