"""The tuning report: one HTML page that needs nothing beside itself."""
