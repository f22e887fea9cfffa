//! Tar files of pictures, as WebDataset has them: members whose names are alike up to the first dot belong together. `0001.jpg`
//! is a picture; `0001.txt`, `0001.caption` or a column of `0001.json` is its caption.
//!
//! Only headers and captions are read, and where pictures lie is said. Errors are texts for users that go on from the file's name.
//! Source: github.com/webdataset/webdataset, `base_plus_ext` and `group_by_keys`.

use std::{
    cell::Cell,
    collections::{BTreeMap, btree_map::Entry},
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::FileExt as _,
};

use ringtune_shared::{
    captions::{CaptionError, LARGEST_CAPTION_FILE, MOST_CAPTIONS, read_caption},
    manifest::{IMAGE_EXTENSIONS, LARGEST_IMAGE_FILE},
    names,
};
use serde_json::{Map, Value};
use tar::EntryType;

use crate::columns::missing;

/// Pictures of a source, and of one of its files.
pub const MOST_SAMPLES: usize = 250_000;
/// Bytes of a member of JSON: all captions of a picture, and much beside them.
const LARGEST_JSON: u64 = 1 << 20;
/// Bytes of a member's name.
const LONGEST_NAME: usize = 512;
/// Bytes of headers of one member, its name and attributes among them.
const LARGEST_HEADERS: u64 = 1 << 20;
/// Names of what is skipped that are kept.
const NAMED: usize = 20;
const BLOCK: u64 = 512;
/// The option that names the column of captions.
const OPTION: &str = "data.caption_column";

/// A picture in a tar file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The member's name.
    pub name: String,
    /// Where its bytes begin.
    pub offset: u64,
    /// How many there are.
    pub length: u64,
    /// Empty: it has none, or none are wanted.
    pub captions: Vec<String>,
}

/// What is in a tar file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shard {
    /// Sorted by name.
    pub samples: Vec<Sample>,
    /// Members that are neither pictures nor captions: how many, and the first of them.
    pub skipped: (usize, Vec<String>),
}

/// Lists the pictures of a tar file. `captions`: the column of JSON members that has them (empty: "text"), if they are wanted. The
/// inner error is for users.
///
/// # Errors
/// It cannot be read.
pub fn read(file: File, captions: Option<&str>) -> io::Result<Result<Shard, String>> {
    let length = file.metadata()?.len();
    let mut magic = [0; 2];
    if length >= 2 {
        file.read_exact_at(&mut magic, 0)?;
    }
    if magic == [0x1f, 0x8b] {
        return Ok(Err(
            "is compressed with gzip; allowed: a plain tar file, in which pictures are found at once"
                .to_owned(),
        ));
    }
    let end = file.try_clone()?;
    let mut listing = Listing { length, captions, end: 0, keys: BTreeMap::new(), shard: Shard::default() };
    let listed = listing.list(file);
    let listed = match listed {
        // What the system says, and not the library.
        Err(Stop::Unreadable(error)) if error.raw_os_error().is_some() => return Err(error),
        Err(Stop::Unreadable(error)) => Err(format!("is no tar file, or a broken one: {error}")),
        Err(Stop::Wrong(problem)) => Err(problem),
        Ok(()) => listing.check_end(&end)?,
    };
    Ok(listed.and_then(|()| listing.finish()))
}

enum Stop {
    Unreadable(io::Error),
    Wrong(String),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}

/// The name of a .json member, and the captions in its column or, where it has no such column, the columns that it has.
type JsonCaptions = (String, Result<Vec<String>, Vec<String>>);

/// The members of one key.
#[derive(Default)]
struct Members {
    /// Name, offset and length.
    picture: Option<(String, u64, u64)>,
    /// A file with a caption, and its name.
    text: Option<(String, String)>,
    json: Option<JsonCaptions>,
}

struct Listing<'a> {
    /// Of the file.
    length: u64,
    captions: Option<&'a str>,
    /// Where the last member ends.
    end: u64,
    keys: BTreeMap<String, Members>,
    shard: Shard,
}

impl Listing<'_> {
    fn list(&mut self, file: File) -> Result<(), Stop> {
        let left = Cell::new(LARGEST_HEADERS);
        let mut archive = tar::Archive::new(Bounded { file, left: &left });
        for entry in archive.entries_with_seek()? {
            let mut entry = entry?;
            let (kind, size, offset) = (entry.header().entry_type(), entry.size(), entry.raw_file_position());
            let name = entry.path_bytes().into_owned();
            let name = String::from_utf8(name).map_err(|name| {
                Stop::Wrong(format!(
                    "has a member whose name is not UTF-8: {:?}",
                    String::from_utf8_lossy(name.as_bytes())
                ))
            })?;
            let name = name.trim_start_matches("./").to_owned();
            let at = |problem: String| Stop::Wrong(format!("{:.100}: {problem}", names::visible(&name)));
            let end = size.checked_next_multiple_of(BLOCK).and_then(|size| offset.checked_add(size));
            self.end = end.filter(|_| offset.saturating_add(size) <= self.length).ok_or_else(|| {
                at(format!(
                    "the tar file is cut short: it has {} bytes, and this member ends behind them",
                    self.length
                ))
            })?;
            if name.len() > LONGEST_NAME {
                return Err(at(format!("its name has {} bytes; allowed: {LONGEST_NAME}", name.len())));
            }
            names::check(&name, LONGEST_NAME).map_err(|problem| at(format!("its name: {problem}")))?;
            match kind {
                EntryType::Directory | EntryType::XGlobalHeader => {}
                EntryType::Regular | EntryType::Continuous => {
                    left.set(LARGEST_HEADERS);
                    self.member(&name, offset, size, &mut entry).map_err(|stop| match stop {
                        Stop::Wrong(problem) => at(problem),
                        unreadable => unreadable,
                    })?;
                }
                _ => self.skip(&name),
            }
            left.set(LARGEST_HEADERS);
        }
        Ok(())
    }

    fn member(&mut self, name: &str, offset: u64, size: u64, bytes: &mut impl Read) -> Result<(), Stop> {
        let wrong = |problem: String| Err(Stop::Wrong(problem));
        let Some((key, ending)) = split(name) else {
            self.skip(name);
            return Ok(());
        };
        let is_picture = IMAGE_EXTENSIONS.contains(&ending.as_str());
        let wanted = self.captions.filter(|_| matches!(ending.as_str(), "txt" | "caption" | "json"));
        if !is_picture && wanted.is_none() {
            self.skip(name);
            return Ok(());
        }
        if self.keys.len() >= MOST_SAMPLES && !self.keys.contains_key(&key) {
            return wrong(format!(
                "the tar file has more than {MOST_SAMPLES} pictures, which is what is allowed"
            ));
        }
        let members = match self.keys.entry(key) {
            Entry::Vacant(place) => place.insert(Members::default()),
            Entry::Occupied(there) => there.into_mut(),
        };
        let twice = |other: &str| match other == name {
            true => "the tar file has two members of this name".to_owned(),
            false => format!("{other} is the same sample's; a sample has one picture, and one caption"),
        };
        if is_picture {
            if let Some((other, ..)) = &members.picture {
                return wrong(twice(other));
            }
            if size == 0 || size > LARGEST_IMAGE_FILE {
                return wrong(format!("it has {size} bytes; allowed: 1 to {LARGEST_IMAGE_FILE}"));
            }
            members.picture = Some((name.to_owned(), offset, size));
        } else if ending == "json" {
            if let Some((other, _)) = &members.json {
                return wrong(twice(other));
            }
            let json = whole(bytes, size, LARGEST_JSON)?;
            let column = wanted.filter(|column| !column.is_empty()).unwrap_or("text");
            members.json = Some((name.to_owned(), of_json(&json, column).map_err(Stop::Wrong)?));
        } else {
            let text = whole(bytes, size, LARGEST_CAPTION_FILE)?;
            let text = read_caption(&text).map_err(|error| Stop::Wrong(error.to_string()))?;
            match (&members.text, text) {
                (_, None) => {}
                (Some((other, before)), Some(text)) if other == name || *before != text => {
                    return wrong(twice(other));
                }
                (_, Some(text)) => members.text = Some((name.to_owned(), text)),
            }
        }
        Ok(())
    }

    fn skip(&mut self, name: &str) {
        let (count, names) = &mut self.shard.skipped;
        *count += 1;
        if names.len() < NAMED {
            names.push(name.to_owned());
        }
    }

    /// A file that is cut between two members has no block of zeros behind them.
    fn check_end(&self, file: &File) -> io::Result<Result<(), String>> {
        let mut block = [0xff; BLOCK as usize];
        match file.read_exact_at(&mut block, self.end) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            read => read?,
        }
        Ok(match block.iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => {
                Err(format!("is cut short: it has {} bytes, and no end behind its last member", self.length))
            }
        })
    }

    fn finish(self) -> Result<Shard, String> {
        let Self { captions, keys, mut shard, .. } = self;
        for Members { picture, text, json } in keys.into_values() {
            let Some((name, offset, length)) = picture else {
                let of_caption = text.map(|(name, _)| name).or(json.map(|(name, _)| name));
                let (count, names) = &mut shard.skipped;
                *count += 1;
                names.extend(of_caption.filter(|_| names.len() < NAMED));
                continue;
            };
            let captions = choose(captions.unwrap_or_default(), text, json)?;
            shard.samples.push(Sample { name, offset, length, captions });
        }
        shard.samples.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(shard)
    }
}

/// The captions of a sample. A column that is named counts more than a text, and a text more than the column "text", which
/// whoever downloads pictures with their captions often writes too.
fn choose(
    column: &str,
    text: Option<(String, String)>,
    json: Option<JsonCaptions>,
) -> Result<Vec<String>, String> {
    match (text, json) {
        (Some((_, text)), json) if column.is_empty() || json.is_none() => Ok(vec![text]),
        (_, Some((_, Ok(captions)))) => Ok(captions),
        (_, Some((name, Err(columns)))) => {
            let column = if column.is_empty() { "text" } else { column };
            Err(format!("{name}: {}", missing(column, columns.iter().map(String::as_str), OPTION)))
        }
        (_, None) => Ok(Vec::new()),
    }
}

/// The key of a member, its folder among it, and its ending in small letters. None: it has no ending, or is what macOS keeps of a
/// file.
fn split(name: &str) -> Option<(String, String)> {
    let begin = name.rfind('/').map_or(0, |slash| slash + 1);
    let (folder, file) = name.split_at(begin);
    let (stem, ending) = file.split_once('.')?;
    (!stem.is_empty() && !ending.is_empty()).then(|| (format!("{folder}{stem}"), ending.to_ascii_lowercase()))
}

/// All bytes of a member.
fn whole(bytes: &mut impl Read, size: u64, most: u64) -> Result<Vec<u8>, Stop> {
    if size > most {
        return Err(Stop::Wrong(format!("it has {size} bytes; allowed: {most}")));
    }
    let mut read = Vec::new();
    bytes.take(most).read_to_end(&mut read)?;
    Ok(read)
}

/// The captions in a member of JSON, or the columns that it has instead.
fn of_json(bytes: &[u8], column: &str) -> Result<Result<Vec<String>, Vec<String>>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| CaptionError::Encoding.to_string())?;
    let row: Map<String, Value> = serde_json::from_str(text.trim_start_matches('\u{feff}'))
        .map_err(|error| format!("it is no JSON object: {error}"))?;
    let texts: Option<Vec<&str>> = match row.get(column) {
        None => return Ok(Err(row.keys().take(NAMED).cloned().collect())),
        Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(Value::as_str).collect(),
        Some(one) => one.as_str().map(|one| vec![one]),
    };
    let texts = texts.ok_or_else(|| format!("its {column:?} is neither a string nor a list of strings"))?;
    let read = texts.into_iter().map(|text| read_caption(text.as_bytes())).filter_map(Result::transpose);
    let captions: Vec<String> = read.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    match captions.len() {
        0..=MOST_CAPTIONS => Ok(Ok(captions)),
        count => Err(CaptionError::TooMany(count).to_string()),
    }
}

/// A file of which only so many bytes are read: the library takes any length of a name, and of attributes, on trust.
struct Bounded<'a> {
    file: File,
    left: &'a Cell<u64>,
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        let left = self.left.get().checked_sub(read as u64);
        self.left.set(
            left.ok_or_else(|| io::Error::other("a member has more than 1 MiB of names and attributes"))?,
        );
        Ok(read)
    }
}

impl Seek for Bounded<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}
