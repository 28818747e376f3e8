"""When a schedule says so: pure functions of schedule, zone and instant; no I/O, nothing else of the scheduler."""
