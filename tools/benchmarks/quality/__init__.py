"""What quantization costs a model: the exports that are measured, and how."""
