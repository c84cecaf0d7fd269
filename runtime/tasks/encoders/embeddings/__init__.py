"""Embeddings of texts: their forms, and late interaction over the vectors of tokens."""
