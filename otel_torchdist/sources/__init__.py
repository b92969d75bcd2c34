"""Sources of evidence: tapes, archives, flight recorder dumps, profiles and logs, all read into one model."""
