"""The timeline of a run as Perfetto shows it: what each rank called and when, in tracks, with flows between ranks."""
