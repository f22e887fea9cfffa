//! Settings one by one: their full names, where they were set, and their types.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use ::config::{Value, ValueKind};
use serde_json::Value as Default;
use toml::de::{DeTable, DeValue};

/// A setting as it was given.
pub(super) struct Setting {
    /// For messages: where it was set.
    pub(super) place: String,
    /// Its full name, as in "grpc.listen".
    pub(super) name: String,
    /// Its value.
    pub(super) leaf: Leaf,
}

/// A value as it was given.
pub(super) enum Leaf {
    /// From the environment or a flag: a text that stands for any type.
    Text(String),
    /// From a file: it has a type of its own.
    Typed(Typed),
}

/// A value of a TOML file.
#[derive(Debug)]
pub(super) enum Typed {
    String(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    List(Vec<Typed>),
    /// Something that no setting is; as it stands in the file.
    Other(String),
}

/// The full name of every setting, with its default value. An empty table has no settings.
pub(super) fn of_defaults(tree: &Default) -> BTreeMap<String, Default> {
    fn collect(prefix: &str, tree: &Default, leaves: &mut BTreeMap<String, Default>) {
        let Default::Object(table) = tree else {
            leaves.insert(prefix.to_owned(), tree.clone());
            return;
        };
        for (key, value) in table {
            collect(&joined(prefix, key), value, leaves);
        }
    }
    let mut leaves = BTreeMap::new();
    collect("", tree, &mut leaves);
    leaves
}

/// A default as the configuration library holds it. (Its own serializer drops empty lists.)
pub(super) fn default_value(default: &Default) -> Value {
    let kind: ValueKind = match default {
        Default::Null => ValueKind::Nil,
        Default::Bool(boolean) => (*boolean).into(),
        Default::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => integer.into(),
            (None, Some(integer)) => integer.into(),
            (None, None) => number.as_f64().into(),
        },
        Default::String(string) => string.as_str().into(),
        Default::Array(entries) => ValueKind::Array(entries.iter().map(default_value).collect()),
        Default::Object(table) => {
            ValueKind::Table(table.iter().map(|(key, value)| (key.clone(), default_value(value))).collect())
        }
    };
    Value::new(None, kind)
}

/// The settings of a file. A table in the place of a setting, or a value in the place of a
/// section, comes out as a setting too, so that it is refused.
pub(super) fn of_file(
    path: &Path,
    text: &str,
    document: &DeTable<'_>,
    known: &BTreeMap<String, Default>,
) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut open = vec![(String::new(), document)];
    while let Some((prefix, table)) = open.pop() {
        for (key, value) in table.iter() {
            let key_text: &str = key.get_ref().borrow();
            let name = joined(&prefix, key_text);
            if let DeValue::Table(inner) = value.get_ref()
                && known.keys().any(|setting| setting.starts_with(&format!("{name}.")))
            {
                open.push((name, inner));
                continue;
            }
            let leaf = Leaf::Typed(typed(text, value.span(), value.get_ref()));
            let place = place_in_file(path, text, key.span());
            settings.push((key.span().start, Setting { place, name, leaf }));
        }
    }
    settings.sort_by_key(|(at, _)| *at);
    settings.into_iter().map(|(_, setting)| setting).collect()
}

/// "FILE, line N".
pub(super) fn place_in_file(path: &Path, text: &str, span: Range<usize>) -> String {
    let line = 1 + text.bytes().take(span.start).filter(|byte| *byte == b'\n').count();
    format!("{}, line {line}", path.display())
}

fn joined(prefix: &str, key: &str) -> String {
    if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") }
}

fn typed(text: &str, span: Range<usize>, value: &DeValue<'_>) -> Typed {
    let other = || Typed::Other(text.get(span.clone()).unwrap_or_default().chars().take(80).collect());
    match value {
        DeValue::String(string) => Typed::String(string.clone().into_owned()),
        DeValue::Integer(integer) => {
            i64::from_str_radix(integer.as_str(), integer.radix()).map_or_else(|_| other(), Typed::Integer)
        }
        DeValue::Float(float) => float.as_str().parse().map_or_else(|_| other(), Typed::Float),
        DeValue::Boolean(boolean) => Typed::Boolean(*boolean),
        DeValue::Array(entries) => {
            Typed::List(entries.iter().map(|entry| typed(text, entry.span(), entry.get_ref())).collect())
        }
        DeValue::Datetime(_) | DeValue::Table(_) => other(),
    }
}

impl Leaf {
    /// The value in the type that the setting's default has; or what is wrong with it.
    ///
    /// Where the default is absent (an option that is not set), any type goes on to the settings
    /// type, which decides.
    pub(super) fn converted_like(self, default: &Default, place: &str) -> Result<Value, String> {
        let origin = Some(place.to_owned());
        let value = match self {
            Leaf::Text(text) => text_like(text, default)?,
            Leaf::Typed(typed) => typed_like(typed, default)?,
        };
        Ok(Value::new(origin.as_ref(), value.kind))
    }
}

fn text_like(text: String, default: &Default) -> Result<Value, String> {
    let refuse = |allowed: &str| format!("got {text:?}; allowed: {allowed}");
    Ok(match default {
        Default::Bool(_) => text.parse::<bool>().map_err(|_| refuse("true or false"))?.into(),
        Default::Number(number) if number.is_f64() => finite(text.parse().map_err(|_| refuse("a number"))?)
            .map_err(|_| refuse("a finite number"))?
            .into(),
        Default::Number(_) => text.parse::<i64>().map_err(|_| refuse("a whole number"))?.into(),
        Default::Array(_) => {
            let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
            Value::from(entries.map(str::to_owned).collect::<Vec<String>>())
        }
        _ => text.into(),
    })
}

fn typed_like(typed: Typed, default: &Default) -> Result<Value, String> {
    let refuse = |typed: &Typed, allowed: &str| Err(format!("got {}; allowed: {allowed}", shown(typed)));
    Ok(match (typed, default) {
        (Typed::Boolean(boolean), Default::Bool(_) | Default::Null) => boolean.into(),
        (Typed::Integer(integer), Default::Number(number)) if number.is_f64() => (integer as f64).into(),
        (Typed::Integer(integer), Default::Number(_) | Default::Null) => integer.into(),
        (Typed::Float(float), Default::Number(number)) if number.is_f64() => finite(float)?.into(),
        (Typed::Float(float), Default::Null) => finite(float)?.into(),
        (Typed::String(string), Default::String(_) | Default::Null) => string.into(),
        (Typed::List(entries), Default::Array(_) | Default::Null) => {
            let entries: Result<Vec<Value>, String> =
                entries.into_iter().map(|entry| typed_like(entry, &Default::Null)).collect();
            entries?.into()
        }
        (other, Default::Bool(_)) => return refuse(&other, "true or false"),
        (other, Default::Number(number)) if number.is_f64() => return refuse(&other, "a number"),
        (other, Default::Number(_)) => return refuse(&other, "a whole number"),
        (other, Default::String(_)) => return refuse(&other, "a text in quotes"),
        (other, Default::Array(_)) => return refuse(&other, "a list"),
        (other, _) => return refuse(&other, "a text, a number, true, false or a list"),
    })
}

fn finite(number: f64) -> Result<f64, String> {
    if number.is_finite() { Ok(number) } else { Err(format!("got {number}; allowed: a finite number")) }
}

fn shown(typed: &Typed) -> String {
    match typed {
        Typed::String(string) => format!("{string:?}"),
        Typed::Integer(integer) => integer.to_string(),
        Typed::Float(float) => float.to_string(),
        Typed::Boolean(boolean) => boolean.to_string(),
        Typed::List(_) => "a list".to_owned(),
        Typed::Other(text) => text.clone(),
    }
}
