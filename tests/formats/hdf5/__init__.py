"""HDF5 and NetCDF-4 files, compared with h5py and h5netcdf."""
