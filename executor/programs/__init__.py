"""Programs of shell targets: the process and its supervisor."""
