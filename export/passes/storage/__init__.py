"""Passes that change how weights and tables are stored, and not what they mean to the nodes that read them."""
