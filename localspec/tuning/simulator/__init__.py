"""What any settings would do on traced answers, in virtual time."""
