"""The bundle folder: writing it whole or not at all, its weights, its client files and its model card."""
