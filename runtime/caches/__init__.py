"""Keys and values of the tokens that a model has read: static, dynamic, and those of a source."""
