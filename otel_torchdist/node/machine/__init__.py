"""The machine under the ranks: memory and storage pressure, network links and GPUs, read periodically by the agent."""
