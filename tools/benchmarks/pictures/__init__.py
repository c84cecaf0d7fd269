"""The runtimes of compare_pictures.py: each is a program of its own interpreter, which prints one line of JSON."""
