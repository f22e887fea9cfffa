//! Reads the sections of a TOML file key by key.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Violation;
use crate::suggest;

/// The line, from 1, on which a span of bytes begins.
pub(super) fn line_of(text: &str, span: Range<usize>) -> usize {
    1 + text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count()
}

/// What other trainers call an option that a job file does not know so, and what to write instead or why there is nothing
/// to write.
pub(super) type ForeignKeys = &'static [(&'static str, &'static str)];

/// Reads the keys of a job file, and keeps all that is wrong with them.
pub(super) struct Reader<'text> {
    /// The file's.
    pub(super) text: &'text str,
    /// In the order in which they were found.
    pub(super) violations: Vec<Violation>,
    /// Lines of the known fields, by full name.
    pub(super) lines: BTreeMap<String, usize>,
    /// Every key of a job file with its section, for "belongs to".
    pub(super) sections_of_keys: Vec<(&'static str, &'static str)>,
    /// Advice for keys of other trainers.
    pub(super) foreign_keys: ForeignKeys,
}

/// The known keys of one table are taken one by one; what is left over is unknown.
pub(super) struct Section<'document> {
    pub(super) name: String,
    pub(super) table: Option<&'document DeTable<'document>>,
    pub(super) known: Vec<&'static str>,
}

/// The draft of a section.
pub(super) trait Keys: Default + PartialEq {
    /// Reads all of its keys.
    fn read(reader: &mut Reader<'_>, section: &mut Section<'_>) -> Self;

    /// Those that are given.
    fn given(&self) -> Vec<&'static str>;

    /// All of its keys, in the order of their declaration.
    fn keys() -> Vec<&'static str> {
        let mut section = Section { name: String::new(), table: None, known: Vec::new() };
        Self::read(&mut Reader::new("", &[]), &mut section);
        section.known
    }
}

impl<'text> Reader<'text> {
    pub(super) fn new(text: &'text str, foreign_keys: ForeignKeys) -> Self {
        let (violations, lines, sections_of_keys) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self { text, violations, lines, sections_of_keys, foreign_keys }
    }

    /// A section of the file.
    pub(super) fn keys<T: Keys>(&mut self, top: &mut Section<'_>, name: &'static str) -> T {
        let mut section = self.section(top, name);
        let draft = T::read(self, &mut section);
        self.refuse_unknown(section);
        draft
    }

    /// A list of tables.
    pub(super) fn tables<T: Keys>(&mut self, section: &mut Section<'_>, key: &'static str) -> Option<Vec<T>> {
        let value = self.take(section, key)?;
        let field = section.full_name(key);
        let wanted = if section.name.is_empty() {
            format!("tables, each under [[{key}]]")
        } else {
            format!("a list of tables such as {{ {} = … }}", T::keys().first().copied().unwrap_or_default())
        };
        let entries = self.expect(&field, value, &wanted, value.get_ref().as_array())?;
        let mut drafts = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let mut section = self.entry(&field, index, entry, "a table");
            drafts.push(T::read(self, &mut section));
            self.refuse_unknown(section);
        }
        Some(drafts)
    }

    /// Table `index` of the list `field`.
    fn entry<'a>(
        &mut self,
        field: &str,
        index: usize,
        entry: &'a Spanned<DeValue<'a>>,
        wanted: &str,
    ) -> Section<'a> {
        let name = format!("{field}[{index}]");
        self.lines.insert(name.clone(), line_of(self.text, entry.span()));
        let table = self.expect(&name, entry, wanted, entry.get_ref().as_table());
        Section { name, table, known: Vec::new() }
    }

    pub(super) fn section<'document>(
        &mut self,
        top: &mut Section<'document>,
        name: &'static str,
    ) -> Section<'document> {
        let table = self
            .take(top, name)
            .and_then(|value| self.expect(name, value, "a table", value.get_ref().as_table()));
        Section { name: name.to_owned(), table, known: Vec::new() }
    }

    pub(super) fn string(&mut self, section: &mut Section<'_>, key: &'static str) -> Option<String> {
        let value = self.take(section, key)?;
        self.expect(&section.full_name(key), value, "a text in quotes", value.get_ref().as_str())
            .map(str::to_owned)
    }

    /// For names that may be numbers.
    pub(super) fn text_or_integer(&mut self, section: &mut Section<'_>, key: &'static str) -> Option<String> {
        let value = self.take(section, key)?;
        let text = match value.get_ref() {
            DeValue::Integer(integer) if integer.radix() == 10 => Some(integer.as_str().to_owned()),
            other => other.as_str().map(str::to_owned),
        };
        self.expect(&section.full_name(key), value, "a text in quotes or a whole number", text)
    }

    pub(super) fn boolean(&mut self, section: &mut Section<'_>, key: &'static str) -> Option<bool> {
        let value = self.take(section, key)?;
        self.expect(&section.full_name(key), value, "true or false", value.get_ref().as_bool())
    }

    pub(super) fn integer(&mut self, section: &mut Section<'_>, key: &'static str) -> Option<i64> {
        let value = self.take(section, key)?;
        let integer = value.get_ref().as_integer();
        let number = integer.and_then(|integer| i64::from_str_radix(integer.as_str(), integer.radix()).ok());
        let wanted = match integer {
            Some(_) => "a whole number with at most 18 digits",
            None => "a whole number",
        };
        self.expect(&section.full_name(key), value, wanted, number)
    }

    pub(super) fn number(&mut self, section: &mut Section<'_>, key: &'static str) -> Option<f64> {
        let value = self.take(section, key)?;
        let number = number_of(value.get_ref());
        self.expect(&section.full_name(key), value, "a number", number)
    }

    /// Numbers by names.
    pub(super) fn numbers(
        &mut self,
        section: &mut Section<'_>,
        key: &'static str,
    ) -> Option<BTreeMap<String, f64>> {
        let value = self.take(section, key)?;
        let field = section.full_name(key);
        let wanted = "numbers by names, such as { \"down_blocks.0\" = 8 }";
        let entries = self.expect(&field, value, wanted, value.get_ref().as_table())?;
        let mut numbers = BTreeMap::new();
        for (name, entry) in entries.iter() {
            let name = name.get_ref().to_string();
            let field = format!("{field}.{name}");
            self.lines.insert(field.clone(), line_of(self.text, entry.span()));
            let number = number_of(entry.get_ref());
            numbers.insert(name, self.expect(&field, entry, "a number", number)?);
        }
        Some(numbers)
    }

    /// For a list that one text alone may stand for.
    pub(super) fn text_or_strings(
        &mut self,
        section: &mut Section<'_>,
        key: &'static str,
    ) -> Option<Vec<String>> {
        let text = section.table.and_then(|table| table.get(key)?.get_ref().as_str());
        match text {
            Some(_) => self.string(section, key).map(|text| vec![text]),
            None => self.strings(section, key),
        }
    }

    pub(super) fn strings(&mut self, section: &mut Section<'_>, key: &'static str) -> Option<Vec<String>> {
        let value = self.take(section, key)?;
        let field = section.full_name(key);
        let entries = self.expect(&field, value, "a list of texts in quotes", value.get_ref().as_array())?;
        let mut strings = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let field = format!("{field}[{index}]");
            self.lines.insert(field.clone(), line_of(self.text, entry.span()));
            let string = self.expect(&field, entry, "a text in quotes", entry.get_ref().as_str())?;
            strings.push(string.to_owned());
        }
        Some(strings)
    }

    pub(super) fn take<'document>(
        &mut self,
        section: &mut Section<'document>,
        key: &'static str,
    ) -> Option<&'document Spanned<DeValue<'document>>> {
        section.known.push(key);
        let value = section.table?.get(key)?;
        self.lines.insert(section.full_name(key), line_of(self.text, value.span()));
        Some(value)
    }

    /// The converted value; or, where it could not be converted, a violation.
    pub(super) fn expect<T>(
        &mut self,
        field: &str,
        value: &Spanned<DeValue<'_>>,
        wanted: &str,
        converted: Option<T>,
    ) -> Option<T> {
        if converted.is_none() {
            let given: String = self.text.get(value.span()).unwrap_or_default().chars().take(80).collect();
            let kind = value.get_ref().type_str();
            self.violations.push(Violation {
                field: field.to_owned(),
                problem: format!("got {given} ({kind}); allowed: {wanted}"),
                line: Some(line_of(self.text, value.span())),
            });
        }
        converted
    }

    pub(super) fn refuse_unknown(&mut self, section: Section<'_>) {
        let Some(table) = section.table else { return };
        for (key, _) in table.iter() {
            let name: &str = key.get_ref().borrow();
            if section.known.contains(&name) {
                continue;
            }
            let shown: String = name.chars().take(100).collect();
            let elsewhere = self.sections_of_keys.iter().find(|(known, _)| *known == name);
            let foreign = self.foreign_keys.iter().find(|(foreign, _)| *foreign == name);
            let problem = if let Some((_, advice)) = foreign {
                format!("not an option here: {advice}")
            } else if let Some(word) = suggest::nearest(name, section.known.iter().copied()) {
                format!("unknown key; did you mean {word:?}?")
            } else if let Some((_, home)) = elsewhere {
                format!("unknown key here; it belongs to [{home}]")
            } else {
                format!("unknown key; allowed: {}", section.known.join(", "))
            };
            self.violations.push(Violation {
                field: section.full_name(&shown),
                problem,
                line: Some(line_of(self.text, key.span())),
            });
        }
    }
}

impl Section<'_> {
    fn full_name(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }
}
fn number_of(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Float(float) => float.as_str().parse().ok(),
        DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse().ok(),
        _ => None,
    }
}
