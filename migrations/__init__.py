"""What rests: numbered SQL and the runner that applies it."""
