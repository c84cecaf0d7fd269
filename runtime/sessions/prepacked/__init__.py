"""Files of a folder for one processor: optimized graphs, and weights in the panels of our kernels."""
