"""Pages for people and scrapers: the live page, the report, and the HTTP server of the agent."""
