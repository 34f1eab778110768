"""Speed and quality, measured: each module prints a table and gives its rows."""
