"""The database schema: numbered SQL, and the runner that applies it."""
