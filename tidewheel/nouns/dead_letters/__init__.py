"""Dead letters: failed runs, and messages that are no valid request."""
