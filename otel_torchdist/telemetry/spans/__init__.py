"""From the records of a tape to spans: an anchor for each segment of a step, its operations beneath it."""
