"""What a model thinks before it answers: its marks, how it is told apart, and how templates switch it."""
