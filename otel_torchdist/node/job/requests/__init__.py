"""Requests of readers to ranks, and the ranks' answers: small files beside the tapes."""
