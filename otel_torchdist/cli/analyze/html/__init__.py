"""`analyze --html`: one HTML file about a run."""
