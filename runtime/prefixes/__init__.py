"""Tokens that earlier prompts and answers left in a cache, found again by their tokens, in memory and on disk."""
