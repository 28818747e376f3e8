"""Command line, Python client and HTTP API."""
