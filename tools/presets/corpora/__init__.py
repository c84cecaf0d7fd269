"""Generators of the texts that presets learn from: grammars, and rules with a right answer."""
