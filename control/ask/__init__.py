"""Questions: an id, a key, or an instant of a job; for REST, the command line and the console."""
