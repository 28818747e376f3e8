"""Services as child processes of one command: `tidewheel dev` and `tidewheel serve`."""
