"""Plans in many processes: `split_by_rank` and its lanes."""
