"""Media that models read beside text: recordings and pictures."""
