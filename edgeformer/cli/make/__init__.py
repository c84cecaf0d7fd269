"""Commands that write bundles and make them load faster."""
