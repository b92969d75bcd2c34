"""Parts of a training loop."""
