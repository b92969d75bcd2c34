"""Reports what was found: as spans, in the log, and as attributes and words of both."""
