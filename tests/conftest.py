"""The fixtures of all tests, by topic."""

pytest_plugins = ["tests.fixtures.stack", "tests.fixtures.database", "tests.fixtures.services", "tests.fixtures.oracle"]
