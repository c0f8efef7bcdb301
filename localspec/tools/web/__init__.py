"""Pages of the web, fetched as text."""
