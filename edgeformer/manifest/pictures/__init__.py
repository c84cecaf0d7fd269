"""The processors of pictures: every number of what happens to a picture before a graph reads it.

A file is a kind: its fields in the manifest, the classes of transformers whose files it is read of, and what others ask
of it. Its pixel values are computed by the file of that name in `edgeformer.runtime.media.pictures.processors`.
"""
