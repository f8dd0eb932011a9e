"""Results for eyes: leaderboards, trials, figures, pages and listings. It needs no torch."""
