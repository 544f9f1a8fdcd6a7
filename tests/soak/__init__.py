"""Many random reads at once, for minutes, through a server that fails now and then; see CONTRIBUTING.md."""
