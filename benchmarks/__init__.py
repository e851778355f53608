"""Measuring: what the engines of this house and others do with the same token ids on the same machine."""
