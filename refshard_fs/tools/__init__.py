"""Tools for a whole source: surveys, checks, comparisons and maps."""
