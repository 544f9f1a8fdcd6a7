"""A source opened: recognised, with its options, and with an engine for each event loop."""
