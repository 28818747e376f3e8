"""One runner per kind of target."""
