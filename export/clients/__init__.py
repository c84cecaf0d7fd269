"""Configuration that other runtimes need to load a bundle."""
