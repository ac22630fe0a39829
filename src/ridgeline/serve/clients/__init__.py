"""What `ridge infer` and `ridge loadtest` speak."""
