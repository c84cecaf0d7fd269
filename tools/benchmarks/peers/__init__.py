"""Runtimes that `python tools/benchmarks/compare_peers.py` compares, each in its own process.

A module named after a runtime runs in that runtime's own Python interpreter, inside worker.py, and has two functions:

    convert(checkpoint, folder, precision)             write the runtime's own model into an empty folder
    load(checkpoint, folder, precision, threads)       open it; return (prompt ids, N) → generation.Generation

Such a module imports its runtime, generation.py, and nothing of edgeformer (except edgeformer.py).
transformers_eager.py has no `convert`, because it reads the checkpoint itself. registry.py lists what each runtime
needs to be installed; process.py starts the workers and lets one of them compute at a time; report.py and plot.py
present the results.
"""
