"""HTTP API for executors in other languages and for task tokens."""
