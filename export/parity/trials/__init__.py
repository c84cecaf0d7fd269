"""Trials: what each kind of graph is run through when it is verified."""
