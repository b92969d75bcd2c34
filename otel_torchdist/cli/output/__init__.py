"""What commands have in common in showing things: words, times, colours, and tables of ranks."""
