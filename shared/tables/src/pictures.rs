//! Pictures in .parquet files, with captions beside them, as Hugging Face's datasets have them: a column `image` of structs
//! with `bytes` (and `path`) in them, or a column of bytes, and a column of strings or of lists of them.
//!
//! Nothing is in memory but the pages that are read. Errors are texts for users that go on from the file's name.

use std::{fs::File, io};

use parquet::{
    data_type::ByteArray,
    file::reader::{FileReader as _, SerializedFileReader},
};
use ringtune_shared::{
    captions::{CaptionError, MOST_CAPTIONS, read_caption},
    manifest::LARGEST_IMAGE_FILE,
};

use crate::{
    cells::Cells,
    columns::{self, Column, Wanted},
    shards::MOST_SAMPLES,
};

/// The column of pictures, where there are several of bytes.
const PICTURES: &str = "image";
/// The option that names the column of captions.
const OPTION: &str = "data.caption_column";
/// Bytes of the list of row groups: those of a file of 250,000 groups.
const LARGEST_FOOTER: u64 = 256 << 20;
/// Bytes of the pictures of a row group, which may all be in one page.
const LARGEST_GROUP: i64 = 1 << 30;
/// Captions that are taken out at once.
const ROWS: usize = 256;

/// A file that was opened.
pub struct PictureTable {
    reader: SerializedFileReader<File>,
    pictures: Column,
    /// Rows of all groups.
    rows: u64,
    /// Where the last picture was read: after each other, nothing is read twice.
    at: Option<At>,
}

struct At {
    group: usize,
    /// Rows of the groups before it and of those that were read in it.
    next: u64,
    cells: Cells,
}

impl PictureTable {
    /// Opens a file. The inner error is for users.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn open(file: File) -> io::Result<Result<Self, String>> {
        let opened = columns::open(file, LARGEST_FOOTER)?;
        Ok(opened.and_then(|reader| {
            let metadata = reader.metadata();
            let pictures = columns::find_bytes(metadata, PICTURES)?;
            let rows =
                metadata.row_groups().iter().map(|group| u64::try_from(group.num_rows()).unwrap_or(u64::MAX));
            let rows = rows.fold(0, u64::saturating_add);
            if rows > MOST_SAMPLES as u64 {
                return Err(format!("has {rows} rows; allowed: {MOST_SAMPLES}"));
            }
            let bytes = |group: &usize| {
                metadata
                    .row_group(*group)
                    .columns()
                    .get(pictures.place)
                    .map_or(0, |chunk| chunk.uncompressed_size())
            };
            let large =
                (0..metadata.num_row_groups()).find(|group| !(0..=LARGEST_GROUP).contains(&bytes(group)));
            if let Some(group) = large {
                let problem = "bytes of pictures; allowed";
                return Err(format!(
                    "its row group {} has {} {problem}: {LARGEST_GROUP}",
                    group + 1,
                    bytes(&group)
                ));
            }
            Ok(Self { reader, pictures, rows, at: None })
        }))
    }

    /// How many rows it has.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The captions of each row, of the column that is named so; empty: "text".
    ///
    /// # Errors
    /// There is no such column (the message lists those that there are), a caption cannot be used, or the file is broken.
    pub fn captions(&self, column: &str) -> Result<Vec<Vec<String>>, String> {
        const MOST_VALUES: u64 = (2 * MOST_SAMPLES * MOST_CAPTIONS) as u64;
        let metadata = self.reader.metadata();
        let name = if column.is_empty() { "text" } else { column };
        let column = columns::find(metadata, name, Wanted::Lists, OPTION)?;
        let mut all = Vec::new();
        for group in 0..metadata.num_row_groups() {
            let mut cells = Cells::new(&self.reader, group, column, MOST_VALUES)?;
            let rows = usize::try_from(metadata.row_group(group).num_rows()).unwrap_or_default();
            let end = all.len() + rows;
            while all.len() < end {
                let texts = cells.next(ROWS.min(end - all.len()))?;
                if texts.is_empty() {
                    return Err(format!("its row group {} ends before row {}", group + 1, all.len() + 1));
                }
                for texts in texts {
                    let row = all.len() + 1;
                    all.push(read_captions(&texts).map_err(|error| format!("row {row}: {error}"))?);
                }
            }
        }
        Ok(all)
    }

    /// The picture in row `row`, from 0.
    ///
    /// # Errors
    /// There is none, it is too large, or the file is broken.
    pub fn picture(&mut self, row: u64) -> Result<Vec<u8>, String> {
        let in_row = |problem: String| format!("row {}: {problem}", row + 1);
        let at = self.go_to(row)?;
        let read = at.cells.next(1)?;
        at.next += 1;
        let Some(cell) = read.first() else { return Err(format!("ends before row {}", row + 1)) };
        let bytes = cell.first().map_or(&[][..], ByteArray::data);
        match bytes.len() as u64 {
            0 => Err(in_row("has no bytes of a picture; paths and addresses are not followed".to_owned())),
            1..=LARGEST_IMAGE_FILE => Ok(bytes.to_vec()),
            length => Err(in_row(format!("its picture has {length} bytes; allowed: {LARGEST_IMAGE_FILE}"))),
        }
    }

    /// Goes to the beginning of a row.
    fn go_to(&mut self, row: u64) -> Result<&mut At, String> {
        // 1. Its group.
        let metadata = self.reader.metadata();
        let (mut group, mut first) = (0, 0);
        while group < metadata.num_row_groups() {
            let rows = u64::try_from(metadata.row_group(group).num_rows()).unwrap_or_default();
            if row < first + rows {
                break;
            }
            (group, first) = (group + 1, first + rows);
        }
        if group == metadata.num_row_groups() {
            return Err(format!("has {} rows, and no row {}", self.rows, row + 1));
        }
        // 2. From where the last one was read, if that is before it.
        let at = match self.at.take().filter(|at| at.group == group && at.next <= row) {
            Some(at) => at,
            None => {
                let cells = Cells::new(&self.reader, group, self.pictures, 2 * MOST_SAMPLES as u64)?;
                At { group, next: first, cells }
            }
        };
        let at = self.at.insert(at);
        let skipped = at.cells.skip(usize::try_from(row - at.next).unwrap_or(usize::MAX))?;
        at.next += skipped as u64;
        if at.next == row {
            Ok(at)
        } else {
            Err(format!("its row group {} ends before row {}", group + 1, row + 1))
        }
    }
}

/// The captions of a row; empty ones do not count.
fn read_captions(texts: &[ByteArray]) -> Result<Vec<String>, CaptionError> {
    let read = texts.iter().map(|text| read_caption(text.data()));
    let captions: Vec<String> = read.filter_map(Result::transpose).collect::<Result<_, _>>()?;
    if captions.len() > MOST_CAPTIONS { Err(CaptionError::TooMany(captions.len())) } else { Ok(captions) }
}
