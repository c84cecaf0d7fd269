"""What ONNX Runtime calls its own ops."""

CONTRIB = "com.microsoft"
