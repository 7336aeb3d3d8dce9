"""What people ask about a study or an installation, answered for every kind of display."""
