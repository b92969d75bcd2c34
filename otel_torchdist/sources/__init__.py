"""Sources of evidence: tapes, archives, dumps of the flight recorder, profiles and logs, all read into one model."""
