"""The parts of a rank's state in a snapshot."""
