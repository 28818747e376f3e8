"""What people submit: jobs and requests, read strictly and refused in plain words."""
