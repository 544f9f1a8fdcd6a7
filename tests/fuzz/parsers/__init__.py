"""One module a parser: its seeds, and `one_input`, which holds what the parser makes of any bytes to its promises."""
