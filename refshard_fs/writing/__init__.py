"""Write keys to an overlay, and commit the overlay to the source."""
