"""The only writers of runs: `create_runs`, `claim_runs`, `finish_runs` and what lies between."""
