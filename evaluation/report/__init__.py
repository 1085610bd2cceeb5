"""report.html: one file for a person to read, which needs nothing beside it and no network."""
