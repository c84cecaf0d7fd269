"""The exports whose quantization loss is measured, and how it is measured."""
