"""The audit log: changes and operations with their actors."""
