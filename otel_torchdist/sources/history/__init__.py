"""What ranks have called, one call after the other, wherever it was recorded."""
