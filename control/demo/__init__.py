"""`tidewheel demo`: run the whole pipeline on real input and verify the result independently."""
