"""A module for each parser, with seeds, and with `check_input`, which checks the parser's result for any bytes."""
