"""What the database allows in a column is what the code's enums hold."""
