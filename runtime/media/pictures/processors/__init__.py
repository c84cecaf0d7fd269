"""The processors of pictures: a file for each kind, which makes what a graph reads of a picture."""
