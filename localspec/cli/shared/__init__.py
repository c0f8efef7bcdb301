"""What commands share: flags, the terminal, errors, figures."""
