"""The account that a bundle gives of itself: manifest, quantization, deployment, and what it costs."""
