"""The chat templates of a model: where they are kept, the forms of messages that they read, conversations as text."""
