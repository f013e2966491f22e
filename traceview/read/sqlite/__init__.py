"""SQLite exports of nsys: checked, opened read-only, and read as frames."""
