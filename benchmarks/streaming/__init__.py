"""Benchmarks of streaming, and the servers that they and the tests stream from."""
