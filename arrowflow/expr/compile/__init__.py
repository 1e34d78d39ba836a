"""Trees become graphs of NumPy kernels, where these kernels are exact."""
