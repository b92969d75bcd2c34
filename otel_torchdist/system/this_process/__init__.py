"""This process: its end, its signals, its garbage collector, its environment as C code sees it."""
