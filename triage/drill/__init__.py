"""a cluster that really breaks, for practice and tests."""
