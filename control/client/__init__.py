"""The Python client: submit, trigger, read and wait for runs."""
