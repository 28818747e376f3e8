"""Command line, Python client, HTTP API and demo."""
