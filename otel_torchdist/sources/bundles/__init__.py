"""Bundles of evidence: job directories as single files that outlive their job."""
