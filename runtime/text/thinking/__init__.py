"""Thinking before an answer: its marks, how it is told apart from the answer, and how templates switch it."""
