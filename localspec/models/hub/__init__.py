"""Models on the Hugging Face hub: what is there, and how it gets here."""
