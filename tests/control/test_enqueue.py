"""A run enqueued in the caller's transaction: it stands or falls with the caller's rows."""
