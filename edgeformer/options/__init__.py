"""Options that users set, each declared once; everything that shows, checks or reads one is derived from here.

It imports the standard library only: `edgeformer run --help` reads these declarations without numpy.
"""
