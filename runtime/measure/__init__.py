"""Tools over a runtime: speed and memory (`benchmarking`), scores (`evaluation`), prepacking (`optimize`)."""
