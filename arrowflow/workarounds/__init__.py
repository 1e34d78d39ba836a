"""Ways around mistakes of other libraries."""
