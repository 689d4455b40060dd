"""What can be compiled for which GPU, shown on the real engine: docs/coverage.md."""
