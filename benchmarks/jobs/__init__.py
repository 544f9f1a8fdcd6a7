"""What people do, beside what they do it with today; the rows are in `cubes`, `files`, `stores` and `notebook`."""
