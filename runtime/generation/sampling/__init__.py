"""How the next token is chosen: rules, processors, constraints, filters, and the draw."""
