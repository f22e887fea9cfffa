//! A .parquet file has a document in each row, in a column of strings. Of the file only that column is read.

use std::{fs::File, ops::Range, path::Path};

use parquet::{
    column::reader::ColumnReaderImpl,
    data_type::{ByteArray, ByteArrayType},
    file::reader::{FileReader as _, SerializedFileReader},
};
use ringtune_tables::columns::{self, Column, Wanted, guarded};

use super::{Broken, Input, InputFile, RowGroup, Sink, sink::DocumentPlace};
use crate::{
    Error,
    limits::{LARGEST_FOOTER, LARGEST_ROW_GROUP, LONGEST_DOCUMENT, MOST_DOCUMENTS},
};

/// Rows that are taken out of the library at once.
const ROWS: usize = 256;

/// The row groups of a file, and that it has the column. Blocks.
pub(super) fn row_groups(file: &Input, column: &str) -> Result<Vec<RowGroup>, Error> {
    let table = Table::open(&file.path, &file.name, column)?;
    let metadata = table.reader.metadata();
    let mut groups = Vec::new();
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let rows = u64::try_from(group.num_rows()).unwrap_or(u64::MAX);
        let chunk = group.columns().get(table.column.place);
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

/// An open file, and its column of texts.
struct Table<'a> {
    name: &'a str,
    reader: SerializedFileReader<File>,
    column: Column,
}

impl<'a> Table<'a> {
    fn open(path: &Path, name: &'a str, column: &str) -> Result<Self, Error> {
        let unusable = |problem: String| Error::unusable(Path::new(name), problem);
        let opened = File::open(path).and_then(|file| columns::open(file, LARGEST_FOOTER));
        let reader = opened.map_err(Error::io("read", path))?.map_err(unusable)?;
        let found = columns::find(reader.metadata(), column, Wanted::Strings, "--text-column");
        Ok(Self { name, column: found.map_err(unusable)?, reader })
    }

    fn unusable(&self, problem: String) -> Error {
        Error::unusable(Path::new(self.name), problem)
    }

    fn texts_of(&self, group: usize) -> Result<Texts, Error> {
        let reader = columns::texts(&self.reader, group, self.column, u64::MAX);
        let reader = reader.map_err(|problem| self.unusable(problem))?;
        Ok(Texts { reader, levels: Vec::new(), values: Vec::new(), optional: self.column.definition > 0 })
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
