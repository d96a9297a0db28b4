"""What lies inside an image: the trainer and the staging of data. Imports `base` and no other."""
