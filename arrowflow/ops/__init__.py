"""One file per operator: its node (what it is) and its kernel (how it runs) together. `base` is the protocol."""
