"""Folders of tables: `nsys export --type parquetdir` and `--type arrowdir`."""
