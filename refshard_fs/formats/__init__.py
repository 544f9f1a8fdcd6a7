"""The formats of sources, a folder for each; `known_formats` lists them. `templates` is a library of formats.

No format imports another, except `jp2`: a JP2 file contains a TIFF. The ``__init__`` of a folder recognises its format,
and imports little. Formats of other packages are registered in the group of entry points ``refshard.formats``: see
`core.format`.
"""
