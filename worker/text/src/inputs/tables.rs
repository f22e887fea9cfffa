//! A .parquet file has a document in each row, in a column of strings.
//!
//! Of the file only that column is read, row group by row group, page by page. The library panics at some broken files: that
//! becomes an error here, as if it had said so.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use parquet::{
    basic::{Compression, ConvertedType, LogicalType, Type as PhysicalType},
    column::reader::ColumnReaderImpl,
    data_type::{ByteArray, ByteArrayType},
    errors::ParquetError,
    file::{
        metadata::ParquetMetaData,
        reader::{FileReader as _, SerializedFileReader},
    },
};

use super::{Broken, Input, InputFile, RowGroup, Sink, pages::Pages, sink::DocumentPlace};
use crate::{
    Error,
    limits::{LARGEST_FOOTER, LARGEST_ROW_GROUP, LONGEST_DOCUMENT, MOST_DOCUMENTS},
};

/// Rows that are taken out of the library at once.
const ROWS: usize = 256;
/// Columns that a message lists.
const MOST_NAMES: usize = 20;

/// The row groups of a file, and that it has the column. Blocks.
pub(super) fn row_groups(file: &Input, column: &str) -> Result<Vec<RowGroup>, Error> {
    let table = Table::open(&file.path, &file.name, column)?;
    let metadata = table.reader.metadata();
    let mut groups = Vec::new();
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let rows = u64::try_from(group.num_rows()).unwrap_or(u64::MAX);
        let chunk = group.columns().get(table.column);
        let unknown = chunk.and_then(|chunk| unknown_compression(chunk.compression()));
        if let Some(name) = unknown {
            return Err(
                table.unusable(format!("is compressed with {name}; allowed: none, Snappy, Zstandard"))
            );
        }
        let bytes = chunk.and_then(|chunk| u64::try_from(chunk.uncompressed_size()).ok()).unwrap_or(u64::MAX);
        if rows > MOST_DOCUMENTS || bytes > LARGEST_ROW_GROUP {
            let problem = format!(
                "its row group {} says it has {rows} rows and {bytes} bytes of text; allowed: {MOST_DOCUMENTS} and \
                 {LARGEST_ROW_GROUP}: write it with smaller row groups",
                number + 1
            );
            return Err(table.unusable(problem));
        }
        groups.push(RowGroup { rows, bytes });
    }
    Ok(groups)
}

/// The name of a compression that this library is built without.
fn unknown_compression(compression: Compression) -> Option<String> {
    use Compression::{SNAPPY, UNCOMPRESSED, ZSTD};
    if matches!(compression, UNCOMPRESSED | SNAPPY | ZSTD(_)) {
        return None;
    }
    // GZIP comes with its level.
    let shown = format!("{compression:?}");
    Some(shown.split('(').next().unwrap_or_default().to_owned())
}

/// Reads the rows of some row groups.
pub(super) fn read(
    source: &InputFile,
    groups: Range<usize>,
    column: &str,
    sink: &mut dyn Sink,
) -> Result<(), Error> {
    let table = Table::open(&source.path, &source.identity.name, column)?;
    let all = table.reader.metadata().row_groups();
    let rows_of = |range: &[parquet::file::metadata::RowGroupMetaData]| {
        range
            .iter()
            .map(|group| u64::try_from(group.num_rows()).unwrap_or_default())
            .fold(0, u64::saturating_add)
    };
    let mut row = rows_of(all.get(..groups.start).unwrap_or_default());
    for number in groups {
        let wanted = rows_of(all.get(number..number + 1).unwrap_or_default());
        let mut reader = table.texts_of(number)?;
        let end = row + wanted;
        while row < end {
            let most = ROWS.min(usize::try_from(end - row).unwrap_or(ROWS));
            let rows = reader.next(&table, most)?;
            if rows.is_empty() {
                return Err(table.unusable(format!(
                    "its row group {} ends before row {}",
                    number + 1,
                    row + 1
                )));
            }
            for text in rows {
                row += 1;
                match checked(text) {
                    Ok(text) => sink.document(text)?,
                    Err(problem) => {
                        let place = DocumentPlace::Row { name: source.identity.name.clone(), row };
                        sink.broken(Broken { place, problem })?;
                    }
                }
                sink.advance(text.map_or(0, <[u8]>::len) as u64);
            }
        }
    }
    Ok(())
}

fn checked(text: Option<&[u8]>) -> Result<&str, String> {
    let bytes = text.ok_or("is null; allowed: a string")?;
    if bytes.len() as u64 > LONGEST_DOCUMENT {
        return Err(format!("has {} bytes; allowed: {LONGEST_DOCUMENT}", bytes.len()));
    }
    std::str::from_utf8(bytes).map_err(|error| format!("is not UTF-8 from byte {} on", error.valid_up_to()))
}

/// An open file, and the place of its column of texts.
struct Table<'a> {
    name: &'a str,
    reader: SerializedFileReader<File>,
    column: usize,
    /// Whether there may be rows without a text.
    optional: bool,
}

impl<'a> Table<'a> {
    fn open(path: &Path, name: &'a str, column: &str) -> Result<Self, Error> {
        let unusable = |problem: String| Error::unusable(Path::new(name), problem);
        let mut file = File::open(path).map_err(Error::io("read", path))?;
        check_footer(&mut file).map_err(Error::io("read", path))?.map_err(unusable)?;
        let reader = guarded(|| SerializedFileReader::new(file)).map_err(unusable)?;
        let (column, optional) = find_column(reader.metadata(), column).map_err(unusable)?;
        Ok(Self { name, reader, column, optional })
    }

    fn unusable(&self, problem: String) -> Error {
        Error::unusable(Path::new(self.name), problem)
    }

    fn texts_of(&self, group: usize) -> Result<Texts, Error> {
        let opened = guarded(|| {
            let group = self.reader.get_row_group(group)?;
            let kind = group.metadata().schema_descr().column(self.column);
            let pages = Pages::new(group.get_column_page_reader(self.column)?, self.optional);
            Ok(ColumnReaderImpl::new(kind, Box::new(pages)))
        });
        let reader = opened.map_err(|problem| self.unusable(problem))?;
        Ok(Texts { reader, levels: Vec::new(), values: Vec::new(), optional: self.optional })
    }
}

/// The texts of a row group.
struct Texts {
    reader: ColumnReaderImpl<ByteArrayType>,
    levels: Vec<i16>,
    values: Vec<ByteArray>,
    optional: bool,
}

impl Texts {
    /// The texts of the next rows, at most `most`; None at the end.
    fn next(&mut self, table: &Table<'_>, most: usize) -> Result<Vec<Option<&[u8]>>, Error> {
        let Self { reader, levels, values, optional } = self;
        levels.clear();
        values.clear();
        let read = guarded(|| reader.read_records(most, optional.then_some(&mut *levels), None, values));
        let (rows, ..) = read.map_err(|problem| table.unusable(problem))?;
        let mut texts = values.iter().map(ByteArray::data);
        if !*optional {
            return Ok(texts.take(rows).map(Some).collect());
        }
        Ok(levels.iter().take(rows).map(|level| if *level > 0 { texts.next() } else { None }).collect())
    }
}

/// Calls the library. What it panics at is a broken file: it works on nothing of ours.
fn guarded<T>(call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(done) => done.map_err(|error| format!("is broken or of a kind that cannot be read: {error}")),
        Err(_) => Err("is broken: the library that reads it gave up".to_owned()),
    }
}

/// The size of the list of row groups, before the library reads all of it. The inner error is for users.
fn check_footer(file: &mut File) -> std::io::Result<Result<(), String>> {
    let size = file.metadata()?.len();
    let mut end = [0; 8];
    if size < 12 {
        return Ok(Err(format!("has {size} bytes: it is no .parquet file")));
    }
    file.seek(SeekFrom::Start(size - 8))?;
    file.read_exact(&mut end)?;
    let [a, b, c, d, magic @ ..] = end;
    let footer = u64::from(u32::from_le_bytes([a, b, c, d]));
    Ok(match () {
        () if magic == *b"PARE" => Err("is encrypted, which is not supported".to_owned()),
        () if magic != *b"PAR1" => {
            Err("does not end as a .parquet file does: it is none, or not whole".to_owned())
        }
        () if footer > LARGEST_FOOTER => {
            Err(format!("its list of row groups has {footer} bytes; allowed: {LARGEST_FOOTER}"))
        }
        () => Ok(()),
    })
}

/// The place of a column of strings among all columns, and whether it may have nulls.
fn find_column(metadata: &ParquetMetaData, name: &str) -> Result<(usize, bool), String> {
    let schema = metadata.file_metadata().schema_descr();
    let columns = schema.columns();
    let Some(place) = columns.iter().position(|column| *column.path().parts() == [name]) else {
        let fields = schema.root_schema().get_fields();
        if fields.iter().any(|field| field.name() == name) {
            return Err(format!(
                "its column {name:?} is a list, a map or a struct; allowed: a column of strings"
            ));
        }
        let names = fields.iter().take(MOST_NAMES).map(|field| format!("{:.40?}", field.name()));
        let names = names.collect::<Vec<_>>().join(", ");
        return Err(format!("has no column {name:?}; it has {names} (see --text-column)"));
    };
    let column = &columns[place];
    let is_text = matches!(column.logical_type_ref(), Some(LogicalType::String))
        || column.converted_type() == ConvertedType::UTF8;
    if column.physical_type() != PhysicalType::BYTE_ARRAY || !is_text || column.max_rep_level() > 0 {
        return Err(format!(
            "its column {name:?} is of the type {}; allowed: a column of strings",
            column.physical_type()
        ));
    }
    Ok((place, column.max_def_level() > 0))
}
