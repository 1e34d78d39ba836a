"""Reports, advice, progress bars, timelines and pictures of a run, for people to look at."""
