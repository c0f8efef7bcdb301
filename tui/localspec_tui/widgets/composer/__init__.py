"""Where prompts are written."""
