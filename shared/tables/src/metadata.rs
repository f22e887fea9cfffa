//! A folder's metadata file: metadata.csv, metadata.jsonl or metadata.parquet, with a picture's file and caption in each line.
//! Source: Hugging Face datasets, `ImageFolder`.
//!
//! Lines name each picture of the folder at most once, and nothing else, so that what is kept of them is bounded.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read as _,
};

use parquet::{
    data_type::ByteArray,
    file::reader::{FileReader as _, SerializedFileReader},
};
use ringtune_shared::{
    captions::{CaptionError, MOST_CAPTIONS, read_caption},
    files::check_file_name,
    manifest::{MOST_CAPTION_BYTES, MOST_FILES},
};
use serde_json::{Map, Value};

use crate::{
    cells::Cells,
    columns::{self, Wanted, missing},
    error::CaptionFileProblem,
};

pub(crate) const NAMES: [&str; 3] = ["metadata.csv", "metadata.jsonl", "metadata.parquet"];
/// Bytes of a metadata file: the most captions, and much beside them that is not used.
const LARGEST_FILE: u64 = 64 << 20;
/// Bytes of a line of a .jsonl file: all captions of a picture, with escapes. Parsed it may take thirty times as much.
const LONGEST_LINE: usize = 1 << 20;
/// Bytes of the list of row groups of a .parquet file.
const LARGEST_FOOTER: u64 = 16 << 20;
/// Rows that are taken out of a .parquet file at once.
const ROWS: usize = 256;
/// Values of a row group: those of the largest folder, each once more in a dictionary.
const MOST_VALUES: u64 = (2 * MOST_FILES * MOST_CAPTIONS) as u64;
/// The option that names the column of captions.
const OPTION: &str = "caption_column";

type Captions = BTreeMap<String, Vec<String>>;

/// The captions of the pictures that the file names; empty where it has none of one. `column`: that of the captions.
pub(crate) fn read(
    name: &str,
    file: File,
    pictures: &BTreeSet<&str>,
    column: &str,
) -> Result<Captions, CaptionFileProblem> {
    let too_large = |bytes: u64| format!("it has {bytes} bytes; allowed: {LARGEST_FILE}");
    let length = file.metadata()?.len();
    if length > LARGEST_FILE {
        return Err(CaptionFileProblem::Wrong(too_large(length)));
    }
    let mut rows = Rows { pictures, unit: "line", found: BTreeMap::new(), bytes: 0 };
    let done = if name.ends_with(".parquet") {
        rows.unit = "row";
        let reader = columns::open(file, LARGEST_FOOTER)?;
        reader.and_then(|reader| of_parquet(&reader, column, &mut rows))
    } else {
        let mut bytes = Vec::new();
        file.take(LARGEST_FILE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LARGEST_FILE {
            return Err(CaptionFileProblem::Wrong(too_large(bytes.len() as u64)));
        }
        let of = if name.ends_with(".csv") { of_csv } else { of_jsonl };
        text_of(&bytes).and_then(|text| of(text, column, &mut rows))
    };
    done.map_err(CaptionFileProblem::Wrong)?;
    Ok(rows.found.into_iter().map(|(name, (_, captions))| (name, captions)).collect())
}

/// What lines say. The errors of all that read them are for users.
struct Rows<'a> {
    pictures: &'a BTreeSet<&'a str>,
    unit: &'static str,
    /// By the pictures' names, with the number of the line.
    found: BTreeMap<String, (u64, Vec<String>)>,
    /// Of all captions.
    bytes: usize,
}

impl Rows<'_> {
    fn add<'t>(
        &mut self,
        number: u64,
        picture: &str,
        texts: impl Iterator<Item = &'t [u8]>,
    ) -> Result<(), String> {
        let at = |problem: String| format!("{} {number}: {problem}", self.unit);
        check_file_name(picture).map_err(|error| {
            at(format!(
                "file_name: {error}; allowed: the name of a picture beside this file, in no other folder"
            ))
        })?;
        if !self.pictures.contains(picture) {
            return Err(at(format!("there is no picture {picture:?} in the folder")));
        }
        if let Some((first, _)) = self.found.get(picture) {
            return Err(at(format!("{picture:?} is in {} {first} already", self.unit)));
        }
        let mut captions = Vec::new();
        for text in texts {
            if let Some(caption) = read_caption(text).map_err(|error| at(format!("the caption: {error}")))? {
                self.bytes += caption.len();
                captions.push(caption);
            }
            if captions.len() > MOST_CAPTIONS {
                return Err(at(format!("it has more than {MOST_CAPTIONS} captions")));
            }
            if self.bytes > MOST_CAPTION_BYTES {
                return Err(at(format!(
                    "up to here, the captions have more than {MOST_CAPTION_BYTES} bytes"
                )));
            }
        }
        self.found.insert(picture.to_owned(), (number, captions));
        Ok(())
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, String> {
    // Editors on Windows begin a file with it.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| {
        let before = bytes.iter().take(error.valid_up_to()).filter(|byte| **byte == b'\n').count();
        format!("line {}: {}", before + 1, CaptionError::Encoding)
    })
}

/// The column of pictures: `file_name`, or the only one whose name ends so.
fn file_column<'c>(columns: impl Iterator<Item = &'c str> + Clone) -> Result<&'c str, String> {
    let mut of_files = columns.clone().filter(|name| name.ends_with("_file_name"));
    match (columns.clone().find(|name| *name == "file_name"), of_files.next(), of_files.next()) {
        (Some(name), ..) | (None, Some(name), None) => Ok(name),
        (None, Some(one), Some(other)) => {
            Err(format!("has {one:?} and {other:?}; call the pictures' column \"file_name\""))
        }
        (None, None, _) => Err(missing("file_name", columns, "docs/data.md")),
    }
}

fn of_csv(text: &str, column: &str, rows: &mut Rows<'_>) -> Result<(), String> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let broken = |error: csv::Error| error.to_string();
    let columns = reader.headers().map_err(broken)?.clone();
    let place = |name: &str| columns.iter().position(|column| column == name);
    let files = place(file_column(columns.iter())?).unwrap_or_default();
    let texts = place(column).ok_or_else(|| missing(column, columns.iter(), OPTION))?;
    for record in reader.records() {
        let record = record.map_err(broken)?;
        let line = record.position().map_or(0, csv::Position::line);
        let text = record.get(texts).map(str::as_bytes);
        rows.add(line, record.get(files).unwrap_or_default(), text.into_iter())?;
    }
    Ok(())
}

fn of_jsonl(text: &str, column: &str, rows: &mut Rows<'_>) -> Result<(), String> {
    let mut columns = BTreeSet::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let at = |problem: String| format!("line {number}: {problem}");
        if line.len() > LONGEST_LINE {
            return Err(at(format!("it has {} bytes; allowed: {LONGEST_LINE}", line.len())));
        }
        let row: Map<String, Value> = serde_json::from_str(line).map_err(|error| {
            at(format!("it is no JSON object: {error}").replace(" at line 1 column ", " at column "))
        })?;
        let file = file_column(row.keys().map(String::as_str)).map_err(at)?;
        let picture = row[file].as_str().ok_or_else(|| at(format!("its {file:?} is no string")))?;
        let texts = match row.get(column) {
            None | Some(Value::Null) => Some(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(Value::as_str).collect(),
            Some(one) => one.as_str().map(|one| vec![one]),
        };
        let texts =
            texts.ok_or_else(|| at(format!("its {column:?} is neither a string nor a list of strings")))?;
        rows.add(number, picture, texts.into_iter().map(str::as_bytes))?;
        columns.extend(row.into_iter().map(|(name, _)| name));
    }
    // A line may be without a caption; all of them are not meant to be.
    if columns.contains(column) {
        Ok(())
    } else {
        Err(missing(column, columns.iter().map(String::as_str), OPTION))
    }
}

fn of_parquet(reader: &SerializedFileReader<File>, column: &str, rows: &mut Rows<'_>) -> Result<(), String> {
    let metadata = reader.metadata();
    let fields = metadata.file_metadata().schema_descr().root_schema().get_fields();
    let file = file_column(fields.iter().map(|field| field.name()))?;
    let files = columns::find(metadata, file, Wanted::Strings, OPTION)?;
    let texts = columns::find(metadata, column, Wanted::Lists, OPTION)?;
    let mut row = 0;
    for group in 0..metadata.num_row_groups() {
        let (mut files, mut texts) =
            (Cells::new(reader, group, files, MOST_VALUES)?, Cells::new(reader, group, texts, MOST_VALUES)?);
        let end = row + u64::try_from(metadata.row_group(group).num_rows()).unwrap_or_default();
        while row < end {
            let most = ROWS.min(usize::try_from(end - row).unwrap_or(ROWS));
            let (files, texts) = (files.next(most)?, texts.next(most)?);
            if files.is_empty() || files.len() != texts.len() {
                return Err(format!("its row group {} ends before row {}", group + 1, row + 1));
            }
            for (file, texts) in files.iter().zip(&texts) {
                row += 1;
                let file = file.first().map_or(&[][..], ByteArray::data);
                let file = std::str::from_utf8(file);
                let file = file.map_err(|_| format!("row {row}: file_name: {}", CaptionError::Encoding))?;
                rows.add(row, file, texts.iter().map(ByteArray::data))?;
            }
        }
    }
    Ok(())
}
