"""Process groups: which there are, who creates them, who belongs to them, and how their members change."""
