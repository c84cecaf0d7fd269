"""Parts of check_cuda.py, tables of what CUDA runs, and what stands in for it on a machine without a GPU."""
