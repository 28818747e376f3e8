"""The tests and the demo on other releases of PostgreSQL, Kafka and Python: `make matrix`."""
