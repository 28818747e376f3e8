"""The runner of migrations: once, in order, by one at a time, and never over an edited file."""
