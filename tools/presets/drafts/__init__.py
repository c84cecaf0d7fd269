"""The layer of multi-token prediction that drafts tokens of tiny-llama, and its training.

layer.py         what it drafts of packed documents, several tokens deep, and how often that comes true
train_layer.py   the command: trains it behind the preset's own weights, and adds it to the preset's folder
"""
