"""The engine plans reads, fetches and checks bytes, and returns them. A key space says where the bytes lie."""
