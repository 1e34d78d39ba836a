"""From trees to graphs of NumPy kernels, where these are exact."""
