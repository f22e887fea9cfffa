//! Columns of strings in .parquet files.
//!
//! Of a file only the wanted columns are read, row group by row group, page by page. The library panics at some broken files:
//! that becomes an error here, as if it had said so. Errors are texts for users that go on from the file's name.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    panic::{AssertUnwindSafe, catch_unwind},
};

use parquet::{
    basic::{Compression, ConvertedType, LogicalType, Type as PhysicalType},
    column::reader::ColumnReaderImpl,
    data_type::ByteArrayType,
    errors::ParquetError,
    file::{
        metadata::ParquetMetaData,
        reader::{FileReader as _, SerializedFileReader},
    },
    schema::types::ColumnDescPtr,
};

use crate::pages::Pages;

/// Columns that a message lists.
const MOST_NAMES: usize = 20;

/// Which columns there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A string, or nothing, in each row.
    Strings,
    /// Also a list of strings.
    Lists,
}

/// A column of strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Among all columns.
    pub place: usize,
    /// The level of a string that is there; 0: there is one in every row.
    pub definition: i16,
    /// Whether a row has a list.
    pub repeated: bool,
}

/// Opens a file whose list of row groups has at most so many bytes: the library reads all of it. The inner error is for users.
///
/// # Errors
/// It cannot be read.
pub fn open(mut file: File, largest_footer: u64) -> io::Result<Result<SerializedFileReader<File>, String>> {
    Ok(match check_footer(&mut file, largest_footer)? {
        Ok(()) => guarded(|| SerializedFileReader::new(file)),
        Err(problem) => Err(problem),
    })
}

/// The column `name`. `option`: what says which, for the message.
///
/// # Errors
/// There is none (the message lists those that there are), or it is of something else.
pub fn find(metadata: &ParquetMetaData, name: &str, wanted: Wanted, option: &str) -> Result<Column, String> {
    let schema = metadata.file_metadata().schema_descr();
    let columns = schema.columns();
    let is_of_it = |place: &usize| columns[*place].path().parts().first().is_some_and(|first| first == name);
    let mut places = (0..columns.len()).filter(is_of_it);
    let (first, more) = (places.next(), places.next());
    let Some(place) = first else {
        let fields = schema.root_schema().get_fields().iter().map(|field| field.name());
        return Err(missing(name, fields, option));
    };
    let column = &columns[place];
    let is_list = column.path().parts().len() > 1;
    let allowed = match wanted {
        Wanted::Strings => "a column of strings",
        Wanted::Lists => "a column of strings, or of lists of them",
    };
    let (most_repeated, is_plain) = match wanted {
        Wanted::Strings => (0, !is_list),
        Wanted::Lists => (1, !is_list || column.max_rep_level() == 1),
    };
    if more.is_some() || !is_plain {
        return Err(format!("its column {name:?} is a list, a map or a struct; allowed: {allowed}"));
    }
    let is_text = matches!(column.logical_type_ref(), Some(LogicalType::String))
        || column.converted_type() == ConvertedType::UTF8;
    if column.physical_type() != PhysicalType::BYTE_ARRAY
        || !is_text
        || column.max_rep_level() > most_repeated
    {
        let kind = column.physical_type();
        return Err(format!("its column {name:?} is of the type {kind}; allowed: {allowed}"));
    }
    column_at(metadata, place)
}

/// The column `name` of bytes, or of structs with such `bytes` in them, as Hugging Face's datasets have pictures. Where there is
/// none of that name, the only one of that sort.
///
/// # Errors
/// There is none (the message lists the columns that there are), or there are several.
pub(crate) fn find_bytes(metadata: &ParquetMetaData, name: &str) -> Result<Column, String> {
    let schema = metadata.file_metadata().schema_descr();
    let is_of_bytes = |column: &ColumnDescPtr| {
        let is_plain = column.logical_type_ref().is_none() && column.converted_type() == ConvertedType::NONE;
        let is_at_its_place = matches!(column.path().parts(), [_] | [_, _]) && column.max_rep_level() == 0;
        column.physical_type() == PhysicalType::BYTE_ARRAY && is_plain && is_at_its_place
    };
    let top = |place: &usize| schema.columns()[*place].path().parts().first().map_or("", String::as_str);
    let fits = |place: &usize| {
        let column = &schema.columns()[*place];
        let parts = column.path().parts();
        is_of_bytes(column) && (parts.len() == 1 || parts.last().is_some_and(|last| last == "bytes"))
    };
    let fitting: Vec<usize> = (0..schema.num_columns()).filter(fits).collect();
    let named = fitting.iter().find(|place| top(place) == name);
    match (named, fitting.as_slice()) {
        (Some(place), _) | (None, [place]) => column_at(metadata, *place),
        (None, []) => {
            let fields = schema.root_schema().get_fields().iter().map(|field| field.name());
            Err(format!(
                "has no pictures, that is no column of bytes and none of structs with \"bytes\" in them; it has {}",
                listed(fields)
            ))
        }
        (None, several) => Err(format!(
            "has several columns of bytes, {}, and none of them is {name:?}",
            listed(several.iter().map(top))
        )),
    }
}

/// A column that can be read.
fn column_at(metadata: &ParquetMetaData, place: usize) -> Result<Column, String> {
    let chunks = metadata.row_groups().iter().filter_map(|group| group.columns().get(place));
    if let Some(name) = chunks.map(|chunk| chunk.compression()).find_map(unknown_compression) {
        return Err(format!("is compressed with {name}; allowed: none, Snappy, Zstandard"));
    }
    let column = metadata.file_metadata().schema_descr().column(place);
    Ok(Column { place, definition: column.max_def_level(), repeated: column.max_rep_level() > 0 })
}

/// The problem of a table without the column `name`.
pub(crate) fn missing<'a>(name: &str, columns: impl Iterator<Item = &'a str>, option: &str) -> String {
    format!("has no column {name:?}; it has {} (see {option})", listed(columns))
}

/// The first of these names, for messages.
fn listed<'a>(columns: impl Iterator<Item = &'a str>) -> String {
    columns.take(MOST_NAMES).map(|name| format!("{name:.40?}")).collect::<Vec<_>>().join(", ")
}

/// A reader of the column in a row group, whose pages have at most so many values together.
///
/// # Errors
/// There is no such row group, or it is broken.
pub fn texts(
    reader: &SerializedFileReader<File>,
    group: usize,
    column: Column,
    most_values: u64,
) -> Result<ColumnReaderImpl<ByteArrayType>, String> {
    guarded(|| {
        let group = reader.get_row_group(group)?;
        let kind = group.metadata().schema_descr().column(column.place);
        let levels = usize::from(column.definition > 0) + usize::from(column.repeated);
        let pages = Pages::new(group.get_column_page_reader(column.place)?, levels, most_values);
        Ok(ColumnReaderImpl::new(kind, Box::new(pages)))
    })
}

/// Calls the library. What it panics at is a broken file: it works on nothing of ours.
///
/// # Errors
/// What it says, or that it gave up.
pub fn guarded<T>(call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(done) => done.map_err(|error| format!("is broken or of a kind that cannot be read: {error}")),
        Err(_) => Err("is broken: the library that reads it gave up".to_owned()),
    }
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

/// The size of the list of row groups, before the library reads all of it. The inner error is for users.
fn check_footer(file: &mut File, largest: u64) -> io::Result<Result<(), String>> {
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
        () if footer > largest => {
            Err(format!("its list of row groups has {footer} bytes; allowed: {largest}"))
        }
        () => Ok(()),
    })
}
