"""From open models to answers, in this process or in a child process."""
