"""Find the node of a graph that computes something else."""
