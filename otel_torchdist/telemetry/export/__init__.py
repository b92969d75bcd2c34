"""Where spans, metrics and events go: the user's providers, or the exporters that the environment configures."""
