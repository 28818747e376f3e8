"""Kafka: clients, group protocols, topic names."""
