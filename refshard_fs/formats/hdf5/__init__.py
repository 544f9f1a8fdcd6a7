"""HDF5 and NetCDF-4 files, opened as they are."""
