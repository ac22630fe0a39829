"""`config.pbtxt` read into a `ModelSpec`."""
