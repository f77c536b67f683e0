"""The chunk index: a projection of the leaves that Postgres holds."""
