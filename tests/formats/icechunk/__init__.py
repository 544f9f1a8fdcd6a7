"""Icechunk repositories, compared with the package icechunk."""
