"""The web console: pages that the API serves, from the reads behind REST."""
