//! Makes the tables of docs/metrics.md from the metrics themselves, as a daemon that has just started shows them. Each daemon
//! has a test that compares its own table, or writes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    path::Path,
};

/// With this variable in its environment the test writes the page instead of comparing it.
const WRITE: &str = "RINGTUNE_WRITE_DOCS";
const COMMAND: &str = "RINGTUNE_WRITE_DOCS=1 cargo test --release --workspace --test metrics_page";

/// Labels whose values no table can list.
const OPEN: [(&str, &str); 3] = [
    ("method", "a method of the API, such as `JobService/GetJob`, or `other`"),
    ("code", "gRPC's status codes"),
    ("version", "the program's"),
];

#[derive(Default)]
struct Family {
    help: String,
    kind: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// Compares the table of `daemon` in docs/metrics.md with what it shows, or writes it.
pub(crate) fn check_table(daemon: &str, shown: &str) {
    let repository =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("docs").is_dir());
    let page = repository.expect("the repository").join("docs/metrics.md");
    let rows: String = families(shown).iter().map(|(name, family)| row(name, family)).collect();
    let wanted = format!("| Name | Type | Labels | Unit | What it is |\n|---|---|---|---|---|\n{rows}");
    let (begin, end) = (format!("<!-- {daemon}: begin -->\n"), format!("<!-- {daemon}: end -->"));
    let read = || fs::read_to_string(&page).expect("docs/metrics.md");
    if std::env::var_os(WRITE).is_some() {
        // The other daemon's test may write its table at the same moment.
        let file = File::open(&page).expect("docs/metrics.md");
        file.lock().expect("the lock");
        let text = read();
        let old = between(&text, &begin, &end);
        let new = text.replace(&format!("{begin}{old}{end}"), &format!("{begin}{wanted}{end}"));
        fs::write(&page, new).expect("written");
        return;
    }
    let text = read();
    let found = between(&text, &begin, &end);
    for (found, wanted) in found.lines().zip(wanted.lines()) {
        assert_eq!(found, wanted, "docs/metrics.md says something else; write it anew:\n  {COMMAND}\n");
    }
    assert_eq!(found.len(), wanted.len(), "docs/metrics.md has other rows; write it anew:\n  {COMMAND}\n");
}

/// Of Prometheus' text format.
fn families(shown: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in shown.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            families.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
        {
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if let Some((name, labels)) = line.split_once('{') {
            // "le" makes the buckets of a histogram.
            let family = ["", "_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|ending| name.strip_suffix(ending))
                .find(|name| families.contains_key(*name))
                .unwrap_or_else(|| panic!("{line} belongs to nothing"));
            let labels = labels.split_once('}').expect("an end of the labels").0;
            let family = families.get_mut(family).expect("found just now");
            for (label, value) in labels.split(',').filter_map(|label| label.split_once('=')) {
                if label != "le" {
                    let values = family.labels.entry(label.to_owned()).or_default();
                    values.insert(value.trim_matches('"').to_owned());
                }
            }
        }
    }
    families
}

fn row(name: &str, family: &Family) -> String {
    let unit = [
        ("_timestamp_seconds", "seconds since 1970"),
        ("_time_seconds", "seconds since 1970"),
        ("_seconds", "seconds"),
        ("_seconds_total", "seconds"),
        ("_bytes", "bytes"),
        ("_bytes_total", "bytes"),
    ];
    let unit = unit.iter().find(|(ending, _)| name.ends_with(ending)).map_or("", |(_, unit)| unit);
    let labels: Vec<String> = family.labels.iter().map(|(label, values)| of_label(label, values)).collect();
    let Family { help, kind, .. } = family;
    assert!(!help.is_empty() && !kind.is_empty(), "{name} says nothing of itself");
    format!("| `{name}` | {kind} | {} | {unit} | {help} |\n", labels.join("; "))
}

fn of_label(label: &str, values: &BTreeSet<String>) -> String {
    if let Some((_, open)) = OPEN.iter().find(|(open, _)| *open == label) {
        return format!("`{label}`: {open}");
    }
    let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
    format!("`{label}`: {}", values.join(", "))
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let rest = text.split_once(begin).unwrap_or_else(|| panic!("docs/metrics.md has no {begin}")).1;
    rest.split_once(end).unwrap_or_else(|| panic!("docs/metrics.md has no {end}")).0
}
