"""`analyze --html`: a report on a run as one HTML file."""
