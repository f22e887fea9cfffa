//! Typed access to one JSON object with errors that name file, key, value and what is allowed.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Widths, counts and the like are at most this: far above any model, far below any overflow.
const MAX_COUNT: u64 = 1 << 20;
/// A config.json above this is not one.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// A config.json.
#[derive(Debug, Clone)]
pub struct Keys {
    file: PathBuf,
    map: Map<String, Value>,
}

impl Keys {
    /// Reads a file that holds one JSON object.
    pub fn read(file: &Path) -> Result<Self> {
        let io = |source| Error::Io { file: file.to_path_buf(), source };
        let json = |reason: String| Error::Json { file: file.to_path_buf(), reason };
        let length = std::fs::metadata(file).map_err(io)?.len();
        if length > MAX_FILE_BYTES {
            return Err(json(format!("has {length} bytes, at most {MAX_FILE_BYTES} are allowed")));
        }
        let text = std::fs::read_to_string(file).map_err(io)?;
        let parsed = serde_json::from_str(&text).or_else(|error| {
            // Python also writes numbers that JSON does not have: DPM-Solver's lambda_min_clipped is -Infinity.
            serde_json::from_str(&quote_infinities(&text)).map_err(|_| error)
        });
        match parsed {
            Ok(Value::Object(map)) => Ok(Keys { file: file.to_path_buf(), map }),
            Ok(_) => Err(json("is not a JSON object".to_string())),
            Err(error) => Err(json(error.to_string())),
        }
    }

    /// Keys that were not read but made of what else is known of `file`.
    pub(crate) fn of(file: &Path, map: Map<String, Value>) -> Self {
        Keys { file: file.to_path_buf(), map }
    }

    /// Replaces the value of `key`.
    pub(crate) fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.map.insert(key.to_string(), value.into());
        self
    }

    /// Without `key`.
    pub(crate) fn without(mut self, key: &str) -> Self {
        self.map.remove(key);
        self
    }

    /// The value of `key`; absent and null are the same.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether `key` is written out as null (where absent means another default).
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// The file the keys came from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// All keys, as the text of a JSON file.
    pub(crate) fn text(&self) -> String {
        // Of what was read as JSON: nothing in it cannot be written.
        serde_json::to_string_pretty(&self.map).unwrap_or_default() + "\n"
    }

    /// The error for a value that is not allowed.
    pub fn invalid(&self, key: &str, allowed: impl std::fmt::Display) -> Error {
        let value = self.map.get(key).map_or_else(|| "absent".to_string(), Value::to_string);
        Error::Config { file: self.file.clone(), key: key.to_string(), value, allowed: allowed.to_string() }
    }

    fn count_from(&self, key: &str, value: &Value, least: u64) -> Result<i64> {
        value
            .as_u64()
            .filter(|count| (least..=MAX_COUNT).contains(count))
            .map(|count| count as i64)
            .ok_or_else(|| self.invalid(key, format!("a whole number from {least} to {MAX_COUNT}")))
    }

    /// A whole number of at least 1; without a default the key must be there.
    pub fn count(&self, key: &str, default: Option<i64>) -> Result<i64> {
        match (self.get(key), default) {
            (Some(value), _) => self.count_from(key, value, 1),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.invalid(key, format!("a whole number from 1 to {MAX_COUNT}"))),
        }
    }

    /// A whole number of at least 0.
    pub fn count_or_zero(&self, key: &str, default: i64) -> Result<i64> {
        self.get(key).map_or(Ok(default), |value| self.count_from(key, value, 0))
    }

    /// One whole number for all of `length` blocks, or a list with one for each.
    pub fn count_per_block(&self, key: &str, default: i64, length: usize) -> Result<Vec<i64>> {
        match self.get(key) {
            None => Ok(vec![default; length]),
            Some(Value::Array(values)) if values.len() == length => {
                values.iter().map(|value| self.count_from(key, value, 1)).collect()
            }
            Some(Value::Array(_)) => {
                Err(self.invalid(key, format!("one whole number, or a list of {length} (one per block)")))
            }
            Some(value) => Ok(vec![self.count_from(key, value, 1)?; length]),
        }
    }

    /// One truth value for all of `length` blocks, or a list with one for each.
    pub fn flag_per_block(&self, key: &str, default: bool, length: usize) -> Result<Vec<bool>> {
        let refuse = || self.invalid(key, format!("true, false, or a list of {length} of them"));
        match self.get(key) {
            None => Ok(vec![default; length]),
            Some(Value::Bool(flag)) => Ok(vec![*flag; length]),
            Some(Value::Array(values)) if values.len() == length => {
                values.iter().map(|value| value.as_bool().ok_or_else(refuse)).collect()
            }
            Some(_) => Err(refuse()),
        }
    }

    /// A non-empty list of whole numbers of at least 1.
    pub fn counts(&self, key: &str, default: &[i64]) -> Result<Vec<i64>> {
        match self.get(key) {
            None => Ok(default.to_vec()),
            Some(Value::Array(values)) if !values.is_empty() && values.len() <= 64 => {
                values.iter().map(|value| self.count_from(key, value, 1)).collect()
            }
            Some(_) => Err(self.invalid(key, "a list of 1 to 64 whole numbers")),
        }
    }

    /// A finite number.
    pub fn number(&self, key: &str, default: f64) -> Result<f64> {
        self.get(key).map_or(Ok(default), |value| {
            value.as_f64().filter(|number| number.is_finite()).ok_or_else(|| self.invalid(key, "a number"))
        })
    }

    /// A number above zero.
    pub fn positive(&self, key: &str, default: f64) -> Result<f64> {
        let number = self.number(key, default)?;
        if number > 0.0 { Ok(number) } else { Err(self.invalid(key, "a number above 0")) }
    }

    /// A list of finite numbers, or `None` when absent.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let numbers =
            value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect::<Option<Vec<_>>>());
        numbers.map(Some).ok_or_else(|| self.invalid(key, "a list of numbers"))
    }

    /// true or false.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        self.get(key)
            .map_or(Ok(default), |value| value.as_bool().ok_or_else(|| self.invalid(key, "true or false")))
    }

    /// One of a few words.
    pub fn word<'a>(&'a self, key: &str, default: &'a str, allowed: &[&str]) -> Result<&'a str> {
        let word = match self.get(key) {
            None => Some(default),
            Some(value) => value.as_str(),
        };
        word.filter(|word| allowed.contains(word))
            .ok_or_else(|| self.invalid(key, format!("one of {}", allowed.join(", "))))
    }

    /// A list of words, each one of a few.
    pub fn words(&self, key: &str, default: &[&str], allowed: &[&str]) -> Result<Vec<String>> {
        let Some(value) = self.get(key) else {
            return Ok(default.iter().map(|word| word.to_string()).collect());
        };
        let words = value.as_array().filter(|list| !list.is_empty() && list.len() <= 64).and_then(|list| {
            list.iter()
                .map(|word| word.as_str().filter(|word| allowed.contains(word)).map(str::to_string))
                .collect::<Option<Vec<_>>>()
        });
        words.ok_or_else(|| self.invalid(key, format!("a list of {}", allowed.join(" or "))))
    }

    /// Refuses any value of `key` but absent, null and those of `allowed`.
    pub fn only(&self, key: &str, allowed: &[Value]) -> Result<()> {
        match self.get(key) {
            None => Ok(()),
            Some(value) if allowed.iter().any(|known| same(known, value)) => Ok(()),
            Some(_) => {
                let mut words: Vec<String> = allowed.iter().map(Value::to_string).collect();
                words.push("null".to_string());
                Err(self.invalid(key, words.join(" or ")))
            }
        }
    }
}

/// Quotes -Infinity, Infinity and NaN outside of strings.
fn quote_infinities(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 16);
    let (mut rest, mut inside) = (text, false);
    while let Some(first) = rest.chars().next() {
        let word =
            ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| !inside && rest.starts_with(word));
        let taken = match (word, first) {
            (Some(word), _) => word.len(),
            (None, '"') => {
                inside = !inside;
                1
            }
            // An escaped quotation mark does not end its string.
            (None, '\\') if inside => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (None, other) => other.len_utf8(),
        };
        match word {
            Some(word) => quoted.extend(["\"", word, "\""]),
            None => quoted.push_str(&rest[..taken]),
        }
        rest = &rest[taken..];
    }
    quoted
}

/// Equality that takes 1 and 1.0 for the same number.
fn same(left: &Value, right: &Value) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn the_numbers_that_python_adds_to_json_are_read_as_words() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        std::fs::write(&file, r#"{"a": -Infinity, "b\\": "NaN \" Infinity, ä", "c": [NaN, 1]}"#).unwrap();
        let keys = Keys::read(&file).unwrap();
        assert_eq!(keys.get("a"), Some(&Value::from("-Infinity")));
        assert_eq!(keys.get("b\\"), Some(&Value::from("NaN \" Infinity, ä")));
        assert!(keys.number("a", 0.0).is_err() && keys.numbers("c").is_err());
        std::fs::write(&file, r#"{"a": -Infinite}"#).unwrap();
        assert!(matches!(Keys::read(&file), Err(Error::Json { .. })));
    }
}
