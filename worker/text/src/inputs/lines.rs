//! A .jsonl file has a document in each line, as a string of a JSON object.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt,
    io::{BufRead, BufReader, Read as _, Seek as _, SeekFrom},
    ops::Range,
};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Broken, InputFile, Sink, sink::DocumentPlace};
use crate::{Error, limits::LONGEST_DOCUMENT};

/// Some programs write it at the begin of files; it belongs to no document.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Names of keys that a message lists.
const MOST_NAMES: usize = 8;

/// Reads the lines that begin at `bytes`.
pub(super) fn read(
    source: &InputFile,
    bytes: Range<u64>,
    column: &str,
    sink: &mut dyn Sink,
) -> Result<(), Error> {
    read_up_to(LONGEST_DOCUMENT, source, bytes, column, sink)
}

/// As above with lines of at most `longest` bytes, line feeds not counted.
fn read_up_to(
    longest: u64,
    source: &InputFile,
    bytes: Range<u64>,
    column: &str,
    sink: &mut dyn Sink,
) -> Result<(), Error> {
    let failed = || Error::io("read", &source.path);
    let mut reader = BufReader::with_capacity(1 << 18, source.open()?);
    // 1. The first line that begins here: it follows a line feed, unless it is the file's first.
    let mut start = bytes.start;
    if start > 0 {
        reader.seek(SeekFrom::Start(start - 1)).map_err(failed())?;
        start = start - 1 + reader.skip_until(b'\n').map_err(failed())? as u64;
    }
    // 2. Line by line.
    let mut line = Vec::new();
    while start < bytes.end {
        line.clear();
        let read = (&mut reader).take(longest + 1).read_until(b'\n', &mut line).map_err(failed())?;
        if read == 0 {
            break;
        }
        let mut length = read as u64;
        let problem = if length > longest && !line.ends_with(b"\n") {
            length += reader.skip_until(b'\n').map_err(failed())? as u64;
            Some(format!("has {length} bytes; allowed: {longest}"))
        } else {
            let content =
                if start == 0 { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&line) } else { &line };
            match text_of(content, column) {
                Ok(Some(text)) => {
                    sink.document(&text)?;
                    None
                }
                Ok(None) => None,
                Err(problem) => Some(problem),
            }
        };
        if let Some(problem) = problem {
            let place =
                DocumentPlace::Line { path: source.path.clone(), name: source.identity.name.clone(), start };
            sink.broken(Broken { place, problem })?;
        }
        start += length;
        sink.advance(length);
    }
    Ok(())
}

/// The text under `key` of a line; none of a line of blanks. Of a key that comes twice the last one counts, as in Python.
fn text_of<'a>(line: &'a [u8], key: &str) -> Result<Option<Cow<'a, str>>, String> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let mut parser = serde_json::Deserializer::from_slice(line);
    let found = Object { key }.deserialize(&mut parser).and_then(|found| parser.end().map(|()| found));
    match found.map_err(|error| problem_of(&error))? {
        Some(Found::Text(text)) => Ok(Some(text)),
        Some(Found::Other(kind)) => Err(format!("{key:?} is {kind}; allowed: a string")),
        None => Err(missing(line, key)),
    }
}

/// The parser's message without its line number, which is always 1.
fn problem_of(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let said = text.rsplit_once(" at line ").map_or(text.as_str(), |(said, _)| said);
    match error.column() {
        0 => format!("is no JSON object: {said}"),
        column => format!("is no JSON object: {said}, at byte {column} of the line"),
    }
}

fn missing(line: &[u8], key: &str) -> String {
    let keys: BTreeMap<String, IgnoredAny> = serde_json::from_slice(line).unwrap_or_default();
    let names: Vec<String> = keys.keys().take(MOST_NAMES).map(|name| format!("{:.40?}", name)).collect();
    match names.is_empty() {
        true => format!("is an object without the key {key:?}"),
        false => format!("has no key {key:?}, only {} (see --text-column)", names.join(", ")),
    }
}

/// The value of the key.
enum Found<'a> {
    Text(Cow<'a, str>),
    /// Something else, in words.
    Other(&'static str),
}

/// Takes one key out of an object and makes nothing of the others.
struct Object<'k> {
    key: &'k str,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Option<Found<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Option<Found<'de>>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(is_it) = map.next_key_seed(Key(self.key))? {
            if is_it {
                found = Some(map.next_value_seed(Value)?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// Whether a key is the one.
struct Key<'k>(&'k str);

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = bool;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

/// Any value, of which only strings are kept.
struct Value;

impl<'de> DeserializeSeed<'de> for Value {
    type Value = Found<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value {
    type Value = Found<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Found::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Found::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Found::Other("null"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Found::Other("true or false"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::Other("a list"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_key::<IgnoredAny>()?.is_some() {
            map.next_value::<IgnoredAny>().map_err(A::Error::custom)?;
        }
        Ok(Found::Other("an object"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::{Identity, Kind, sink::testing::Collected};

    fn text(line: &str) -> Result<Option<String>, String> {
        text_of(line.as_bytes(), "text").map(|text| text.map(Cow::into_owned))
    }

    #[test]
    fn the_text_is_what_json_says_it_is() {
        for (line, expected) in [
            (r#"{"text": "plain"}"#, "plain"),
            (r#"{"id": 3, "more": {"text": ["x"]}, "text": "a\n\u00e9\ud83d\ude00"}"#, "a\né😀"),
            (r#"{"text": "first", "text": "last"}"#, "last"),
            ("  {\"text\":\"\"}\r\n", ""),
            ("{\"te\\u0078t\": \"x\"}", "x"),
        ] {
            assert_eq!(text(line).unwrap().as_deref(), Some(expected), "{line}");
        }
        assert_eq!(text(" \r\n").unwrap(), None);
    }

    #[test]
    fn what_is_no_document_is_described() {
        for (line, word) in [
            (r#"{"text": null}"#, "is null; allowed: a string"),
            (r#"{"text": 3}"#, "a number"),
            (r#"{"text": ["a"]}"#, "a list"),
            (r#"{"text": {"a": [1, {}]}}"#, "an object"),
            (r#"{"body": "x", "id": 1}"#, r#"only "body", "id""#),
            ("{}", "without the key"),
            (r#"["text"]"#, "no JSON object"),
            (r#"{"text": "x"} {}"#, "trailing"),
            (r#"{"text": "x"#, "EOF"),
            (r#"{"text": "\ud83d"}"#, "no JSON object"),
            ("{\"text\": \"a\tb\"}", "control character"),
        ] {
            let problem = text(line).unwrap_err();
            assert!(problem.contains(word), "{line}: {problem}");
        }
        assert!(text_of(b"{\"text\": \"\xff\"}", "text").is_err());
        let deep = format!("{{\"text\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(text(&deep).is_err());
    }

    fn file_of(content: &str) -> (tempfile::TempDir, InputFile) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, content).unwrap();
        let identity = Identity::of(&path, "a.jsonl").unwrap();
        (folder, InputFile { path, kind: Kind::Lines, identity })
    }

    #[test]
    fn lines_that_are_too_long_are_passed_over_without_being_held() {
        let long = "x".repeat(1000);
        let (_folder, source) = file_of(&format!(
            "{{\"text\":\"a\"}}\n{{\"text\":\"{long}\"}}\n{{\"text\":\"b\"}}\n{{\"text\":\"{long}\"}}"
        ));
        let size = source.identity.size;
        for cut in [0, 15, 500, 1030, size] {
            let mut sink = Collected::default();
            read_up_to(20, &source, 0..cut, "text", &mut sink).unwrap();
            read_up_to(20, &source, cut..size, "text", &mut sink).unwrap();
            assert_eq!(sink.texts, ["a", "b"], "{cut}");
            assert_eq!(sink.broken, ["a.jsonl, line 2", "a.jsonl, line 4"], "{cut}");
            assert_eq!(sink.bytes, size, "{cut}");
        }
    }

    /// However a file is cut, each line is read once, and broken ones have their numbers.
    #[test]
    fn every_cut_gives_every_line_once() {
        let lines = ["{\"text\":\"one\"}", "", "{\"text\":\"two\"}", "broken", "{\"text\":\"three\"}"];
        let (_folder, source) = file_of(&format!("\u{feff}{}", lines.join("\n")));
        let size = source.identity.size;
        for cut in 0..=size {
            let mut sink = Collected::default();
            read(&source, 0..cut, "text", &mut sink).unwrap();
            read(&source, cut..size, "text", &mut sink).unwrap();
            assert_eq!(sink.texts, ["one", "two", "three"], "{cut}");
            assert_eq!(sink.broken, ["a.jsonl, line 4"], "{cut}");
            assert_eq!(sink.bytes, size, "{cut}");
        }
    }
}
