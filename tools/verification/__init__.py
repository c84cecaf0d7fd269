"""Checks that take longer than the test suite: the parity gate itself, op sets, clients, CUDA."""
