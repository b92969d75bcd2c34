"""The dictionary beside a tape: strings are written once, and records carry their ids."""
