"""`ridge loadtest`: load, measurement, search, report."""
