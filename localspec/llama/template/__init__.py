"""A model's chat template: what it does with conversations, and conversations in the form that it takes."""
