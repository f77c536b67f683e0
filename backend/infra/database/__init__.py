"""PostgreSQL: the one system of record."""
