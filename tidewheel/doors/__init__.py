"""Doors: REST, command line and console, derived from the operations of the nouns."""
