"""Chats made from templates.

A model of a few million parameters cannot learn to program or to plot from a few megabytes of text,
but it can learn these forms, and they give the demo something that it answers well.
"""
