"""Families whose pictures are cut into tiles of one size: a file per `model_type`."""
