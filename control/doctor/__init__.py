"""`tidewheel doctor`: checks of an installation, each with evidence and a remedy."""
