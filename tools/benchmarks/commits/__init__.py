"""An earlier commit as a contender: its tree (trees.py), and an adapter that an edgeformer of any commit runs."""
