"""What the tests share, as a list of plugins. One that another imports stands before it."""

pytest_plugins = ["tests.fixtures.waiting", "tests.fixtures.servers", "tests.fixtures.disks", "tests.fixtures.flow"]
