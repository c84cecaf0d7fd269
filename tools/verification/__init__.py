"""Checks of what the test suite cannot hold in minutes: the parity gate itself, op sets, clients, CUDA."""
