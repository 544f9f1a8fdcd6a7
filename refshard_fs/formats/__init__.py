"""The formats of sources, a folder for each. None of them imports another; `known_formats` lists them.

The ``__init__`` of a folder recognises its format, and imports little. Formats of other packages are registered in the
group of entry points ``refshard.formats``: see `core.format`.
"""
