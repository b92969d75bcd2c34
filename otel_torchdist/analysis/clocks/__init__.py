"""Clock alignment between nodes, from the collectives that their ranks share. Pure."""
