"""Measurements side by side with other readers; each module is a program."""
