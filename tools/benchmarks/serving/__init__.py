"""Benchmarks of many requests: engine, server and batch jobs."""
