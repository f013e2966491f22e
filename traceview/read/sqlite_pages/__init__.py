"""Integer columns of a large SQLite table, decoded straight from its pages.

SQLite steps through a table row by row. The tables of an export hold millions of rows of plain integers, and NumPy
decodes their pages several times faster. `table_decoder` is the only public function.

The decoder relies on these parts of https://www.sqlite.org/fileformat2.html:

- 1.3, database header: page size, reserved bytes, format versions, text encoding, and the size of the file in pages.
  That size counts only while "version-valid-for" (offset 92) equals the change counter (offset 24).
- 1.4, lock-byte page: the page at byte 2^30 belongs to no table.
- 1.6, B-tree pages: each cell of an interior table page (type 5) holds a child page and the largest rowid below it; the
  last child is in the header. A leaf (type 13) holds the rows. Two bytes per cell point to the cells, in rowid order.
  A cell of a leaf is the size of its record, its rowid and the record, which lies whole on its page up to a size of
  page size - 35. Both numbers are varints: big-endian, 7 bits per byte, the ninth byte with all 8.
- 2.1, record format: the size of the header, one serial type per column, then the values. Types 0 to 6, 8 and 9 are
  NULL and integers of 0 to 8 bytes; the decoder skips floats (7), blobs and texts (from 12).
- 2.3, representation of tables: a rowid table with no key and no generated column stores its columns in their order.
- 2.6, sqlite_schema: the root page of each table.

Rule: the decoder returns the same values in the same rows as SQLite with `PRAGMA cell_size_check=ON`. It makes the
checks of pages and records that SQLite makes while it scans a table (btreeInitPage, btreeCellSizeCheck, getAndInitPage,
moveToRoot, moveToChild and OP_Column). Neither checks the free space of a page, the order of rowids or overlapping
cells. SQLite reads everything else, or names the damage: overflow pages, reserved bytes, UTF-16, WAL files, leaves at
different depths, a page that occurs twice, records with fewer columns than the table, and values that are neither
integers nor NULL.

`scripts/decoder-differential` compares the decoder with SQLite on generated and damaged databases.
"""

from traceview.read.sqlite_pages.decoder import TableDecoder, table_decoder
from traceview.read.sqlite_pages.pages import ALL_ROWS, RowIds
from traceview.read.sqlite_pages.records import IntegerColumn

__all__ = ["ALL_ROWS", "IntegerColumn", "RowIds", "TableDecoder", "table_decoder"]
