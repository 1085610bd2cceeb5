"""Results in other programs' formats."""
