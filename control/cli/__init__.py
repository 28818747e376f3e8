"""The `tidewheel` command."""
