"""`tidewheel demo`: the whole pipeline on real input, reckoned up against an independent count."""
