"""The kit that trained the bundled pair: text, tokenizer, training, export, measurement.

It is part of the repository, not of the wheel. MODEL_CARD.md lists the commands in their order.
"""
