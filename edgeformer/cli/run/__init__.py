"""Commands that run bundles: on the terminal, behind HTTP, over files of any size."""
