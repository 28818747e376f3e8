"""REST: jobs, runs and dead letters, executors in other languages, and task tokens."""
