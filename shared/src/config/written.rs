//! Settings as a file has them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::{ConfigError, Loaded, leaves_of};

/// The settings in effect as TOML, each with where it was set.
///
/// # Errors
/// A settings type that cannot be written down: a mistake in it.
pub fn written<T: Serialize>(loaded: &Loaded<T>) -> Result<String, ConfigError> {
    let mut sections: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for (name, value) in leaves_of(&loaded.settings)? {
        let (section, key) = name.rsplit_once('.').unwrap_or(("", &name));
        let place = loaded.places.get(&name).map_or("default", String::as_str);
        // TOML cannot express an unset value.
        let line = match value {
            Value::Null => format!("# {key} is not set"),
            value => format!("{key} = {}  # {}", value_as_toml(&value), in_one_line(place)),
        };
        sections.entry(section.to_owned()).or_default().push((key.to_owned(), line));
    }
    let mut text = String::new();
    for (section, lines) in sections {
        if !section.is_empty() {
            let _ = writeln!(text, "{}[{section}]", if text.is_empty() { "" } else { "\n" });
        }
        for (_, line) in lines {
            let _ = writeln!(text, "{line}");
        }
    }
    Ok(text)
}

/// One setting of an example: its meaning, allowed values, and default, commented out.
pub fn example(key: &str, sentence: &str, allowed: &str, default: &Value) -> String {
    format!(
        "{}{}#{key} = {}\n",
        commented(sentence),
        commented(&format!("Allowed: {}.", allowed.trim_end_matches('.'))),
        value_as_toml(default)
    )
}

/// Words after "# ", in lines of a width that editors show.
fn commented(text: &str) -> String {
    const WIDTH: usize = 100;
    let mut lines = vec!["#".to_owned()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= WIDTH || line == "#" => {
                *line += " ";
                *line += word;
            }
            _ => lines.push(format!("# {word}")),
        }
    }
    lines.join("\n") + "\n"
}

/// A value as TOML writes it. JSON's texts, numbers and lists are TOML's too, but for one symbol.
pub fn value_as_toml(value: &Value) -> String {
    match value {
        Value::Array(entries) => {
            format!("[{}]", entries.iter().map(value_as_toml).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string().replace('\u{7f}', "\\u007F"),
    }
}

/// The name of a file may hold anything; a comment ends with its line.
fn in_one_line(text: &str) -> String {
    text.chars().map(|symbol| if symbol.is_control() { '?' } else { symbol }).collect()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    struct Settings {
        name: String,
        limits: Limits,
    }

    #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
    struct Limits {
        seconds: f64,
        roots: Vec<String>,
        proxy: Option<String>,
    }

    #[test]
    fn what_is_written_reads_as_the_same_settings() {
        let name = "a\"b\\c\n\t\u{7f}\u{1}é # [x]".to_owned();
        let limits = Limits { seconds: 2.0, roots: vec!["/a b".into(), "x\ny = 1".into()], proxy: None };
        let settings = Settings { name, limits };
        let places = BTreeMap::from([("limits.seconds".to_owned(), "/a\nb.toml, line 3".to_owned())]);
        let text = written(&Loaded { settings: settings.clone(), places }).unwrap();
        assert!(text.contains("seconds = 2.0  # /a?b.toml, line 3\n"), "{text}");
        assert!(text.contains("# default\n"), "{text}");
        assert_eq!(toml::from_str::<Settings>(&text).unwrap(), settings);
    }

    #[test]
    fn examples_are_comments_of_a_bounded_width() {
        let sentence = "How many words this has, of which there are so many that no line could ever hold all of them at once.";
        let text = example("a_key", sentence, "0 or more", &Value::from(7));
        assert!(text.ends_with("\n# Allowed: 0 or more.\n#a_key = 7\n"), "{text}");
        assert!(text.lines().all(|line| line.starts_with('#') && line.len() <= 100), "{text}");
        assert_eq!(text.lines().count(), 4);
    }
}
