"""Actions on a stall that the user has asked for."""
