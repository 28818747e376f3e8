"""The fixtures of all tests, by topic."""

pytest_plugins = [
    "tidewheel.testing.plugin",  # by its entry point's name, under which pytest knows it where that is installed
    "tests.fixtures.layers",
    "tests.fixtures.landing",
    "tests.fixtures.stack",
    "tests.fixtures.database",
    "tests.fixtures.given",
    "tests.fixtures.history",
    "tests.fixtures.services",
    "tests.fixtures.oracle",
    "tests.fixtures.prometheus",
]
