"""The process that this code runs in: its end, its signals, its garbage, its environment in C."""
