"""The kit that trained the bundled pair: text, tokenizer, training, export, measurement.

It is in no wheel. localspec/demo/MODEL_CARD.md lists the commands in their order.
"""
