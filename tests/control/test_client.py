"""The clients: requests, runs and waiting, from Python."""
