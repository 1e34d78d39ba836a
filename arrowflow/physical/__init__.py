"""HOW a plan runs: chains of stages, made of the kernels that the nodes name."""
