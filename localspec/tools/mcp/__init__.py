"""Tools, prompts and resources of MCP servers.

`connection` and what only it imports need the package `mcp`; it is imported when a server is first needed.
"""
