"""Tokens from texts and texts from tokens: tokenizer, chat templates, streams of text, languages."""
