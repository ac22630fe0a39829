"""What is counted and told: statistics, metrics, the machine, traces."""
