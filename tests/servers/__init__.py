"""Real servers for the tests: each listens on 127.0.0.1 and a free port, and ends with its ``with`` block."""
