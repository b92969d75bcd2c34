"""The critical path of steps across all ranks. Pure."""
