"""Models of submitted jobs and requests: strict, with errors that name path, problem and remedy."""
