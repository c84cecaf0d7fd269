"""From prompts to texts: the config, the rows that generate together, drafts, and beam search."""
