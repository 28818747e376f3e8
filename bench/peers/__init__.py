"""Other job queues on the same PostgreSQL, in an environment of their own; nothing of Tidewheel depends on them."""
