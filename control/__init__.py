"""The side people see: command line, client and demo."""
