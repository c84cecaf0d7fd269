"""Commands that prove something of bundles: what they compute, and who can load them."""
