"""Read models for the command line, the API and the client."""
