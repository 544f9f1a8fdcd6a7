"""Writing: where new values go, what a transaction is, and how each format takes a commit."""
