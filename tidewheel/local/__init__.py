"""The embedded stack: PostgreSQL and Kafka on a machine with nothing but Python."""
