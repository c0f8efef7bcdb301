"""What verbs share: flags, the terminal, errors, figures."""
