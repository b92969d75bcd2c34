"""Makes dumps of a flight recorder from the calls that tapes hold, of any backend."""
