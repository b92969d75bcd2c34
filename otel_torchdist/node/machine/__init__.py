"""The machine under the ranks: memory, pressure, links, their processes and GPUs, read now and then by the agent."""
