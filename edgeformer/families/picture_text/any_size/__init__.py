"""Families whose towers read pictures of any size: a file per `model_type`."""
