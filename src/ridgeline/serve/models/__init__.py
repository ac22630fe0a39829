"""Models of a repository in memory: built, loaded, warmed up, swapped, asked."""
