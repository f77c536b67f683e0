"""One script a figure. Each compares two things in one run and prints JSON; see docs/performance.md."""
