"""A standby site: record the state of this installation in topics, and raise another one from them."""
