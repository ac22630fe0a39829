"""The folders of a repository: versions and changes."""
