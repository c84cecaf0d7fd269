"""ONNX graphs as text, tables, differences and pictures: the parts of `python tools/graph_viewer/graph.py`."""
