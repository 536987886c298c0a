"""One file per request code, and the table that finds them."""
