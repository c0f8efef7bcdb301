"""From open models to answers, in this process or in one of their own."""
