"""What hpcenv costs, measured against what it is made of. `make bench`, `make bench-demo`."""
