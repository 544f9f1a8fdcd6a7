"""The formats of sources, a folder for each. None of them imports another; `known_formats` lists them.

A folder says in its ``__init__`` how its format is recognised, and imports little to do so. Those of other packages are
registered in the group of entry points ``refshard.formats``: see `core.format`.
"""
