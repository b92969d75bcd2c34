"""Plans the script: who takes part, in which groups, with which calls of which sizes, and how each rank ends."""
