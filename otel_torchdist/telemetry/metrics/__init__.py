"""What ranks and nodes do in numbers, for Prometheus to scrape and for OTLP to push."""
