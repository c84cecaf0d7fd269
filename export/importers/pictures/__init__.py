"""Read what models of pictures have beside their weights, and compare it with what transformers makes of it."""
