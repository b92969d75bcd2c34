"""What pages for browsers have in common: their look, drawing modules in plain JavaScript, and how they are built."""
