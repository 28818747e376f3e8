"""Moves outbox rows to Kafka."""
