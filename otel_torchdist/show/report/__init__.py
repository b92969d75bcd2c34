"""The report on a run: a document, and a page for browsers that draws it. Pure functions."""
