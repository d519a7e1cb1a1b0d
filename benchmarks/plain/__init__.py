"""Plain versions of the project's fast code, for comparison in benchmarks and tests."""
