"""What people look at: reports, advice, progress bars, timelines and pictures."""
