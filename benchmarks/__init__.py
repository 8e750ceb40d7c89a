"""Speed and memory as ratios: `python -m benchmarks` prints the table."""
