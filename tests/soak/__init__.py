"""Read at random from many threads and processes for minutes, from a server with faults; see CONTRIBUTING.md."""
