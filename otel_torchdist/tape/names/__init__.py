"""The dictionary of a tape: names are written once, and records refer to them by id."""
