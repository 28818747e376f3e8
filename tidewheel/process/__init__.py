"""One service process: start, drain and stop, health, metrics, logs."""
