"""Run a program before and after its migration, and compare what the two runs did."""
