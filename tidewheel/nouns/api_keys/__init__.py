"""API keys: what opens REST and the console, and the calls of executors in other languages."""
