"""Tables of Arrow: their columns, and how they are filled from records."""
