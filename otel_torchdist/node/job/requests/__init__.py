"""What a reader asks of a rank, and what the rank answers: small files beside its tape."""
