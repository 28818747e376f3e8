"""Tidewheel: a distributed job scheduler on PostgreSQL and Kafka."""
