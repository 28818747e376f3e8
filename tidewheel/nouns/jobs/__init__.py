"""Jobs and their versions."""
