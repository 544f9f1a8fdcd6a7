"""HDF5 and NetCDF-4 files, held against h5py and h5netcdf."""
