"""The report as one document. Frozen data only, which becomes JSON as it is."""
