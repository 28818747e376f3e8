"""Freezes: scopes of which no run starts until the thaw."""
