"""What is done about a stall, when the user has asked for it."""
