"""What looks at a whole source: surveys, checks, differences and maps."""
