"""ONNX graphs as text, tables, differences and pictures, for `python tools/graph_viewer/graph.py`."""
