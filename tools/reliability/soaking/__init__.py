"""A server under seeded requests for a long time: the load, its server, and what grows."""
