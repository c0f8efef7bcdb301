"""What a chat is made of, without a screen and without a model."""
