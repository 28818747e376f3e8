"""The only writers of runs: `create_runs`, the claims, `finish_runs` and what lies between."""
