"""The embedded stack: PostgreSQL and Kafka without other software; the extra `tidewheel[local]`."""
