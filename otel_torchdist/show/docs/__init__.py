"""The pages on verdicts, findings and alerts, served beside `/metrics`."""
