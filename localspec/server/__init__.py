"""One address for every client on this machine: OpenAI's protocol and others, before the open models."""
