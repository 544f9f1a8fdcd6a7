"""Icechunk repositories, held against icechunk."""
