"""Chats and all that belongs to them, without a screen and without a model."""
