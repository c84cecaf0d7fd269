"""Families whose towers read sound: a file per `model_type`."""
