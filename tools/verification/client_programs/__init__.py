"""Clients that load a bundle, for `python tools/verification/conformance.py`.

Most run a program of examples/, so that the published examples are what is tested. client.py defines what a client is;
programs.py has the clients that are a command, browser.py the web page in a Chromium (driven by chromium.py), and
registry.py lists all of them.
"""
