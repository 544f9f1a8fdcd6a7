"""Real servers for the tests. Each listens on a free port of 127.0.0.1, and stops at the end of its ``with`` block."""
