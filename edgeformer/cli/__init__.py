"""The command line: one thin file a verb, each a parser over a function that Python users call too."""
