"""JSON that anybody may have written, dataclasses as JSON and back, and files that reach the disk."""
