"""Write whole objects; a write can require that the object still has the version that was read."""
