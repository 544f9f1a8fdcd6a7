"""Typical jobs, done with refshard and with today's usual tool; `cubes`, `files`, `stores`, `notebook` define them."""
