"""Running stages: the calls of kernels, their queues, and their order."""
