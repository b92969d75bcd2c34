"""What others ask of this rank."""
