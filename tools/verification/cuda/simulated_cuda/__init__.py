"""onnxruntime's CUDA provider on a machine without a GPU: its libraries are real, CUDA's are simulated.

`libraries` builds libraries with the names of CUDA's that compute nothing (`runtime.c`), and `child` runs in a process
with them: which kernels the provider has, where it places the nodes of a graph, whether its kernels accept a graph's
attributes and shapes, what a step copies, and whether a CUDA graph captures it. Numbers are not computed.
"""
