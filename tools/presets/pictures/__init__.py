"""Pictures that a preset is trained on, and questions about them."""
