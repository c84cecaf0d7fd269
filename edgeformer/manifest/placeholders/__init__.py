"""Placeholders of pictures: the tokens that stand for a picture in a prompt.

A file is a kind: its fields in the manifest, the tokens that a picture becomes, and its marks as texts, which a family
knows and a tokenizer encodes at export.
"""
