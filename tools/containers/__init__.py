"""Run the Compose file in containers, kill each one under load, and judge what is left."""
