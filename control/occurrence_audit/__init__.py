"""`tidewheel admin audit`: recompute every occurrence and compare it with what is recorded."""
