"""Benchmarks that run both sides in one go. `make bench`."""
