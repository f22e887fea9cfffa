//! `filter` of the lists: which of its things a client wants to see. Pure.
//!
//! ```text
//! filter = [ term { ( "AND" | "," ) term } ]
//! term   = field "=" value
//! field  = letters, digits and . _ / -
//! value  = bare | quoted
//! bare   = letters, digits and . _ / : @ + -, at least one
//! quoted = '"' anything, with \" for a quote and \\ for a backslash '"'
//! ```
//!
//! White space may stand around all of these and must stand behind `AND`. It is what AIP-160 has under the same name,
//! with neither `OR` nor any comparison but `=`.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::CharIndices;

use ringtune_proto::convert::FieldError;
use ringtune_shared::job::check_label_key;

/// Bytes of a filter.
const LONGEST: usize = 8192;
/// What a label's key has before it.
const LABELS: &str = "labels.";
const ALLOWED: &str = "FIELD=VALUE, several joined by \" AND \" or by commas";

/// The values that fields must have. They are taken out one by one; what is left over is not a field of the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Filter {
    terms: BTreeMap<String, String>,
}

impl Filter {
    /// Reads a filter; an empty one wants everything.
    ///
    /// # Errors
    /// Where it cannot be read, or names a field twice, with what is allowed.
    pub(super) fn parse(text: &str) -> Result<Self, FieldError> {
        if text.len() > LONGEST {
            return Err(refused(format!("{} bytes; allowed: at most {LONGEST}", text.len())));
        }
        let mut reader = Reader { letters: text.char_indices().peekable() };
        let terms = reader.filter().map_err(|problem| {
            let at = reader.letters.peek().map_or(text.len(), |(at, _)| *at);
            let before: String = text.get(at..).unwrap_or_default().chars().take(20).collect();
            let place =
                if before.is_empty() { "at its end".to_owned() } else { format!("before {before:?}") };
            refused(format!("cannot be read {place}: {problem}; allowed: {ALLOWED}"))
        })?;
        Ok(Self { terms })
    }

    /// What it says, in one form for all ways to write it: a page token is bound to that.
    pub(super) fn canonical(&self) -> String {
        format!("{:?}", self.terms)
    }

    /// The text that a field must be, if it must be one.
    pub(super) fn text(&mut self, field: &str) -> Option<String> {
        self.terms.remove(field)
    }

    /// The value that a field must have, if it must have one; `read` gives none for a text that is no such value.
    ///
    /// # Errors
    /// The field, what was given, and `allowed`.
    pub(super) fn value<T>(
        &mut self,
        field: &str,
        allowed: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, FieldError> {
        let Some(text) = self.text(field) else { return Ok(None) };
        match read(&text) {
            Some(value) => Ok(Some(value)),
            None => Err(refused(format!("{field}: got {:?}; allowed: {allowed}", shown(&text)))),
        }
    }

    /// The labels that a job must have, by their keys.
    ///
    /// # Errors
    /// A key that no label can have.
    pub(super) fn labels(&mut self) -> Result<BTreeMap<String, String>, FieldError> {
        let is_label = |field: &String| field.starts_with(LABELS);
        let fields: Vec<String> = self.terms.keys().filter(|field| is_label(field)).cloned().collect();
        let mut labels = BTreeMap::new();
        for field in fields {
            let key = field.strip_prefix(LABELS).unwrap_or(&field);
            check_label_key(key).map_err(|problem| refused(format!("{}: {problem}", shown(&field))))?;
            let value = self.terms.remove(&field).unwrap_or_default();
            labels.insert(key.to_owned(), value);
        }
        Ok(labels)
    }

    /// Refuses what nobody took.
    ///
    /// # Errors
    /// The first field that is none of `fields`, which are those of the list.
    pub(super) fn finish(self, fields: &str) -> Result<(), FieldError> {
        match self.terms.into_keys().next() {
            None => Ok(()),
            Some(field) => {
                Err(refused(format!("there is no field {:?} here; allowed: {fields}", shown(&field))))
            }
        }
    }
}

fn refused(problem: String) -> FieldError {
    FieldError::new("filter", problem)
}

/// The beginning of a text from outside.
fn shown(text: &str) -> String {
    text.chars().take(100).collect()
}

struct Reader<'a> {
    letters: Peekable<CharIndices<'a>>,
}

impl Reader<'_> {
    fn filter(&mut self) -> Result<BTreeMap<String, String>, String> {
        let mut terms = BTreeMap::new();
        self.skip_space();
        if self.peek().is_none() {
            return Ok(terms);
        }
        loop {
            let (field, value) = self.term()?;
            if terms.contains_key(&field) {
                return Err(format!("{} is given twice", shown(&field)));
            }
            terms.insert(field, value);
            self.skip_space();
            match self.peek() {
                None => return Ok(terms),
                Some(',') => drop(self.letters.next()),
                Some(_) => self.and()?,
            }
            self.skip_space();
        }
    }

    fn term(&mut self) -> Result<(String, String), String> {
        let field = self.word(|letter| letter.is_ascii_alphanumeric() || "._/-".contains(letter));
        if field.is_empty() {
            return Err("a field's name is missing".to_owned());
        }
        self.skip_space();
        match self.peek() {
            Some('=') => drop(self.letters.next()),
            Some('!' | '<' | '>' | ':' | '~') => return Err("= is the only comparison".to_owned()),
            _ => return Err(format!("there is no = after {}", shown(&field))),
        }
        self.skip_space();
        let value = match self.peek() {
            Some('"') => self.quoted()?,
            _ => {
                let value = self.word(|letter| letter.is_ascii_alphanumeric() || "._/:@+-".contains(letter));
                if value.is_empty() {
                    return Err(format!(
                        "{} has no value; one with other characters than letters, digits and . _ / : @ + - needs double quotes",
                        shown(&field)
                    ));
                }
                value
            }
        };
        Ok((field, value))
    }

    fn quoted(&mut self) -> Result<String, String> {
        let mut value = String::new();
        self.letters.next();
        while let Some((_, letter)) = self.letters.next() {
            match letter {
                '"' => return Ok(value),
                '\\' => match self.letters.next() {
                    Some((_, escaped @ ('"' | '\\'))) => value.push(escaped),
                    _ => return Err("only \\\" and \\\\ are known in quotes".to_owned()),
                },
                plain => value.push(plain),
            }
        }
        Err("a quote is not closed".to_owned())
    }

    fn and(&mut self) -> Result<(), String> {
        let mut ahead = self.letters.clone();
        let is_and = "AND".chars().all(|wanted| ahead.next().is_some_and(|(_, letter)| letter == wanted));
        if !is_and || ahead.peek().is_some_and(|(_, letter)| !letter.is_whitespace()) {
            return Err("AND or a comma is missing".to_owned());
        }
        self.letters = ahead;
        Ok(())
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> String {
        let mut word = String::new();
        while let Some((_, letter)) = self.letters.next_if(|(_, letter)| belongs(*letter)) {
            word.push(letter);
        }
        word
    }

    fn skip_space(&mut self) {
        while self.letters.next_if(|(_, letter)| letter.is_whitespace()).is_some() {}
    }

    fn peek(&mut self) -> Option<char> {
        self.letters.peek().map(|(_, letter)| *letter)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn problem(text: &str) -> String {
        let error = Filter::parse(text).unwrap_err();
        assert_eq!(error.field, "filter");
        error.problem
    }

    #[test]
    fn terms_are_read_however_they_are_parted() {
        let mut spaced =
            Filter::parse(" owner = ada AND\tlabels.a.b/c=\"x \\\"y\\\" \\\\\" ,state=QUEUED ").unwrap();
        let plain = Filter::parse(r#"state=QUEUED,owner=ada,labels.a.b/c="x \"y\" \\""#).unwrap();
        assert_eq!(spaced.canonical(), plain.canonical());
        assert_eq!(spaced.labels().unwrap(), BTreeMap::from([("a.b/c".to_owned(), "x \"y\" \\".to_owned())]));
        assert_eq!(spaced.value("state", "x", |text| (text == "QUEUED").then_some(1)), Ok(Some(1)));
        assert_eq!((spaced.text("owner").as_deref(), spaced.text("name")), (Some("ada"), None));
        assert_eq!(spaced.finish("state"), Ok(()));
        assert_eq!(Filter::parse("  "), Ok(Filter::default()));
        let mut words = Filter::parse("name=AND AND owner=\"\"").unwrap();
        assert_eq!((words.text("name").as_deref(), words.text("owner").as_deref()), (Some("AND"), Some("")));
    }

    #[test]
    fn what_cannot_be_read_is_shown_where_it_begins() {
        for (text, part) in [
            ("owner", "at its end: there is no = after owner"),
            ("owner=", "at its end: owner has no value"),
            ("=ada", "before \"=ada\": a field's name is missing"),
            ("owner!=ada", "before \"!=ada\": = is the only comparison"),
            ("priority>3", "before \">3\": = is the only comparison"),
            ("owner=ada AND", "at its end: a field's name is missing"),
            ("owner=ada,", "at its end: a field's name is missing"),
            ("owner=ada OR owner=bob", "before \"OR owner=bob\": AND or a comma is missing"),
            ("owner=ada ANDstate=queued", "AND or a comma is missing"),
            ("owner=ada owner=bob", "AND or a comma is missing"),
            ("owner=ada,owner=bob", "owner is given twice"),
            ("owner=\"ada", "at its end: a quote is not closed"),
            ("owner=\"a\\n\"", "only \\\" and \\\\ are known in quotes"),
            ("owner=<ada>", "needs double quotes"),
            ("(owner=ada)", "a field's name is missing"),
        ] {
            let problem = problem(text);
            assert!(problem.contains(part), "{text}: {part:?} is not in {problem:?}");
            assert!(problem.contains("allowed: FIELD=VALUE"), "{problem}");
        }
        assert!(problem(&"x".repeat(LONGEST + 1)).contains("8193 bytes; allowed: at most 8192"));
    }

    #[test]
    fn unknown_fields_and_impossible_values_are_named() {
        let filter = |text: &str| Filter::parse(text).unwrap();
        let unknown = filter("colour=red").finish("state, name").unwrap_err();
        assert_eq!(unknown.problem, "there is no field \"colour\" here; allowed: state, name");
        let number = filter("priority=high").value("priority", "0 to 1000", |text| text.parse::<u32>().ok());
        assert_eq!(number.unwrap_err().problem, "priority: got \"high\"; allowed: 0 to 1000");
        let key = filter("labels.Team=x").labels().unwrap_err();
        assert!(key.problem.starts_with("labels.Team: the key \"Team\""), "{key}");
        assert!(filter("labels.=x").labels().is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC*", noise in "[a-c=\",\\\\ AND.\u{e4}]{0,40}") {
            for text in [text, noise] {
                if let Err(error) = Filter::parse(&text) {
                    prop_assert_eq!(error.field, "filter");
                }
            }
        }

        #[test]
        fn any_value_can_be_asked_for(terms in proptest::collection::btree_map("[a-z][a-z0-9._/-]{0,9}", ".*", 0..5)) {
            let quoted = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"");
            let text: Vec<String> =
                terms.iter().map(|(field, value)| format!("{field}=\"{}\"", quoted(value))).collect();
            prop_assert_eq!(Filter::parse(&text.join(" AND ")).unwrap().terms, terms.clone());
            prop_assert_eq!(Filter::parse(&text.join(",")).unwrap().terms, terms);
        }
    }
}
