"""Processors of pictures and prompts with pictures, compared with those of transformers."""
