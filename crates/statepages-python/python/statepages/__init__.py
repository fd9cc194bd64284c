"""Resumable state checkpoints in KV-cache pages."""
