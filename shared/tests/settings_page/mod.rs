//! Makes the tables of docs/settings.md from the settings themselves: keys and defaults from `Default`, texts from the
//! doc comments of the fields. Each daemon has a test that compares its own table, or writes it.
//!
//! A field's first paragraph is a sentence that says what the setting is. The second one, `Allowed: …`, says which values
//! are allowed; a `bool` needs none. Bounds that it names are tried, through the environment variable that the page names.

mod example;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::Path,
};

use ringtune_shared::config::{ENVIRONMENT_PREFIX, Sources, load};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// With this variable in its environment the test writes the page instead of comparing it.
const WRITE: &str = "RINGTUNE_WRITE_DOCS";
const COMMAND: &str = "RINGTUNE_WRITE_DOCS=1 cargo test --release --workspace --test settings_page";

/// A field of a settings struct, as its source has it.
struct Field {
    name: String,
    kind: String,
    paragraphs: Vec<String>,
}

/// Compares the table of `daemon` in docs/settings.md with the settings, or writes it.
///
/// And the same of `deploy/examples/NAME.toml`, which has every setting as a comment.
///
/// `sources`: the files, from the repository's root, in which `Settings` and its sections are declared. `by_reload`: which of
/// them a daemon that runs takes from settings that it reads again. `validate`: what the daemon refuses beyond types.
pub(crate) fn check_table<S, E>(
    daemon: &str,
    sources: &[&str],
    by_reload: &[&str],
    validate: impl Fn(&S) -> Result<(), E>,
) where
    S: Default + Serialize + DeserializeOwned,
{
    let repository =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("docs").is_dir());
    let repository = repository.expect("the repository");
    let accepts = |variable: &str, value: &str| {
        let environment = vec![(variable.to_owned(), value.to_owned())];
        load::<S>(Sources { environment, ..Sources::default() })
            .is_ok_and(|settings| validate(&settings).is_ok())
    };

    // 1. The settings, each with what its field says.
    let mut structs = BTreeMap::new();
    for source in sources {
        structs.extend(structs_of(&fs::read_to_string(repository.join(source)).expect(source)));
    }
    let defaults = serde_json::to_value(S::default()).expect("the defaults");
    let (mut rows, mut example, mut keys) = (Vec::new(), example::header(daemon), Vec::new());
    collect(&structs, "Settings", "", &defaults, &mut |key, field, default| {
        rows.push(row(key, field, default, by_reload, &accepts));
        example += &example::entry(key, &field.paragraphs, default);
        keys.push(key.to_owned());
    });
    if let Some(unknown) = by_reload.iter().find(|key| !keys.contains(&(**key).to_owned())) {
        panic!("{unknown} is no setting of {daemon}");
    }
    example::check::<S>(repository, daemon, &example);

    // 2. The page.
    let header = "| Key | Environment variable | Default | Allowed | Unit | Reload | What it is |\n|---|---|---|---|---|---|---|\n";
    let wanted = format!("{header}{}", rows.concat());
    let page = repository.join("docs/settings.md");
    let (begin, end) = (format!("<!-- {daemon}: begin -->\n"), format!("<!-- {daemon}: end -->"));
    if std::env::var_os(WRITE).is_some() {
        // The other daemon's test may write its table at the same moment.
        let file = File::open(&page).expect("docs/settings.md");
        file.lock().expect("the lock");
        let text = fs::read_to_string(&page).expect("docs/settings.md");
        let old = between(&text, &begin, &end);
        fs::write(&page, text.replace(&format!("{begin}{old}{end}"), &format!("{begin}{wanted}{end}")))
            .expect("written");
        return;
    }
    let text = fs::read_to_string(&page).expect("docs/settings.md");
    let found: Vec<&str> = between(&text, &begin, &end).lines().collect();
    let wanted: Vec<&str> = wanted.lines().collect();
    for (index, line) in wanted.iter().enumerate() {
        let found = found.get(index).copied().unwrap_or("nothing");
        assert_eq!(found, *line, "docs/settings.md says something else; write it anew:\n  {COMMAND}\n");
    }
    assert_eq!(
        found.len(),
        wanted.len(),
        "docs/settings.md has settings that {daemon} has not:\n  {COMMAND}\n"
    );
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let rest = text.split_once(begin).unwrap_or_else(|| panic!("docs/settings.md has no {begin}")).1;
    rest.split_once(end).unwrap_or_else(|| panic!("docs/settings.md has no {end}")).0
}

/// The structs of a source that rustfmt has formatted, by their names.
fn structs_of(source: &str) -> BTreeMap<String, Vec<Field>> {
    let mut structs: BTreeMap<String, Vec<Field>> = BTreeMap::new();
    let (mut open, mut paragraphs) = (None, vec![String::new()]);
    for line in source.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("///").map(str::trim) {
            match (paragraphs.last_mut(), doc) {
                (_, "") => paragraphs.push(String::new()),
                (Some(last), doc) if last.is_empty() => doc.clone_into(last),
                (Some(last), doc) => *last += &format!(" {doc}"),
                (None, _) => {}
            }
            continue;
        }
        if let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {")) {
            open = Some(name.to_owned());
        } else if line == "}" {
            open = None;
        } else if let (Some(of), Some(field)) =
            (&open, line.strip_prefix("pub ").and_then(|line| line.strip_suffix(',')))
            && let Some((name, kind)) = field.split_once(": ")
        {
            let field =
                Field { name: name.to_owned(), kind: kind.to_owned(), paragraphs: paragraphs.clone() };
            structs.entry(of.clone()).or_default().push(field);
        } else if line.starts_with("#[") {
            continue;
        }
        paragraphs = vec![String::new()];
    }
    structs
}

/// Shows every setting below `prefix`, in the order of the fields. A field whose type is a struct is a section, which
/// is shown before its settings.
fn collect(
    structs: &BTreeMap<String, Vec<Field>>,
    name: &str,
    prefix: &str,
    defaults: &Value,
    show: &mut impl FnMut(&str, &Field, &Value),
) {
    let fields = structs.get(name).unwrap_or_else(|| panic!("no source has a struct {name}"));
    let keys = defaults.as_object().map_or(0, serde_json::Map::len);
    assert_eq!(fields.len(), keys, "the fields of {name} were not all read");
    for field in fields {
        let key = if prefix.is_empty() { field.name.clone() } else { format!("{prefix}.{}", field.name) };
        let default = defaults.get(&field.name).unwrap_or_else(|| panic!("{key} has no default"));
        match default {
            Value::Object(_) => {
                show(&key, field, default);
                collect(structs, &field.kind, &key, default, show);
            }
            _ => show(&key, field, default),
        }
    }
}

fn row(
    key: &str,
    field: &Field,
    default: &Value,
    by_reload: &[&str],
    accepts: &dyn Fn(&str, &str) -> bool,
) -> String {
    let variable = format!("{ENVIRONMENT_PREFIX}{}", key.to_uppercase().replace('.', "__"));
    let [sentence, rest @ ..] = field.paragraphs.as_slice() else { panic!("{key} has no doc comment") };
    assert!(
        sentence.ends_with('.') && !sentence.contains(". "),
        "{key}: its doc comment is to begin with one sentence"
    );
    if default.is_object() {
        return format!("| **`[{key}]`** | | | | | | {sentence} |\n");
    }
    let allowed = match (rest, default) {
        ([], Value::Bool(_)) => "`true` or `false`",
        ([allowed], _) => {
            allowed.strip_prefix("Allowed: ").and_then(|allowed| allowed.strip_suffix('.')).unwrap_or("")
        }
        _ => "",
    };
    assert!(!allowed.is_empty(), "{key}: the second paragraph of its doc comment is to be `Allowed: ….`");
    try_bounds(key, &variable, allowed, default, accepts);
    let shown = format!("`{default}`{}", in_mebibytes(key, default));
    let unit = if default.is_number() { unit(key) } else { "–" };
    let reload = if by_reload.contains(&key) { "yes" } else { "–" };
    format!("| `{key}` | `{variable}` | {shown} | {allowed} | {unit} | {reload} | {sentence} |\n")
}

/// Tries the bounds of "A to B" and "A or more", and what is just beyond them.
fn try_bounds(
    key: &str,
    variable: &str,
    allowed: &str,
    default: &Value,
    accepts: &dyn Fn(&str, &str) -> bool,
) {
    let lowest = allowed.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    let highest = allowed.split_once(" to ").and_then(|(_, rest)| rest.parse::<f64>().ok());
    if !default.is_number() {
        return;
    }
    assert!(lowest.is_some() || highest.is_some(), "{key}: {allowed:?} names no bound");
    let beyond = if default.is_f64() { 0.001 } else { 1.0 };
    for (bound, outside) in [(lowest, -beyond), (highest, beyond)] {
        let Some(bound) = bound else { continue };
        assert!(
            accepts(variable, &bound.to_string()),
            "{key}: {bound} is refused, but {allowed:?} are allowed"
        );
        let outside = bound + outside;
        assert!(
            !accepts(variable, &outside.to_string()),
            "{key}: {outside} is accepted, but only {allowed:?} are allowed"
        );
    }
}

/// As the last words of keys say it: `idle_seconds`, `queued_jobs`, `calls_per_connection`.
fn unit(key: &str) -> &str {
    let counted = key.split("_per_").next().unwrap_or(key);
    counted.rsplit(['_', '.']).next().unwrap_or(counted)
}

/// A size in bytes for people: " (4 GiB)".
fn in_mebibytes(key: &str, default: &Value) -> String {
    match default.as_u64().filter(|bytes| key.ends_with("_bytes") && *bytes > 0) {
        Some(bytes) if bytes % (1 << 30) == 0 => format!(" ({} GiB)", bytes >> 30),
        Some(bytes) if bytes % (1 << 20) == 0 => format!(" ({} MiB)", bytes >> 20),
        _ => String::new(),
    }
}
