"""Benchmarks of the engine and of the service: speed, quality, and the peers they are compared with."""
