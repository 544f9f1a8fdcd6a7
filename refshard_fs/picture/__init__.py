"""Pictures of where an array's bytes lie: what is shown, laid out as shapes and labels, drawn as SVG, HTML or PNG."""
