"""Clients that load a bundle: the parts of `python tools/verification/conformance.py`.

Most run a program of examples/, so that what is shown is what is tested. client.py says what a client is; programs.py
has those that are a command, browser.py the page in a Chromium (chromium.py drives it), registry.py the list of all.
"""
