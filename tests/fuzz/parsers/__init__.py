"""One module for each parser: its seeds, and `one_input`, which checks the parser's promises for any bytes."""
