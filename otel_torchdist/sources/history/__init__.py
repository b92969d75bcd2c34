"""Call histories of ranks, in columns, from any source."""
