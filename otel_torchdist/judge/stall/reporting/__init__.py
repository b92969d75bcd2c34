"""Reports stalls and findings as spans and log records, with their attributes and text."""
