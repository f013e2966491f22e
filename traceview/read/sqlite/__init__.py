"""SQLite exports of nsys: checked, opened read-only, read as frames and written."""
