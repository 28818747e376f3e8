"""The only writers of runs: `write_runs`, `start_runs`, `end_runs` and what lies between."""
