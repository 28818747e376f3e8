"""Batches: runs that one request writes together, and the jobs that their ends trigger."""
