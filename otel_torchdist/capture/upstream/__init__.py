"""The private and undocumented symbols of torch that this package uses: one row each, and how they are looked up."""
