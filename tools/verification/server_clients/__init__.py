"""Programs of the official clients of language models, for `python tools/verification/server_clients.py`.

Each is written as its client's documentation writes it, but for the address and the name of the model, and runs in an
environment that has nothing of edgeformer. It prints a line for each call: a word for the call, and what came back, as
JSON. `runs.py` has the programs and what has to come back, `scripted_server.py` the server.
"""
