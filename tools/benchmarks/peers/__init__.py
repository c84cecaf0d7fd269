"""Runtimes behind one pipe each: the parts of `python tools/benchmarks/compare_peers.py`.

A file named for a runtime has two functions and runs in that runtime's own interpreter, inside worker.py:

    convert(checkpoint, folder, precision)             write the runtime's own model into an empty folder
    load(checkpoint, folder, precision, threads)       open it; returns a function from (prompt ids, N) to a turn.Turn

Such a file imports its runtime, turn.py, and nothing of edgeformer (edgeformer.py apart). transformers_eager.py has no
`convert`, for it reads the checkpoint itself. registry.py says what each needs to be installed; process.py starts the
workers and lets one at a time compute; report.py and plot.py show it.
"""
