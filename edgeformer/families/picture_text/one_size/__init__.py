"""Families whose pictures have one size: a file per `model_type`."""
