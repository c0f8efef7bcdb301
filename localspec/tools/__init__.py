"""Tools that the models may call: our own, and those of MCP servers."""
