"""The timeline of a run for Perfetto: each rank's calls on tracks, with flow arrows between ranks."""
