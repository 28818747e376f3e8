"""Nouns, each in a folder with its records, reads and operations."""
