//! The example of a daemon's settings file: every setting, commented out, with its default.

use std::{fs, path::Path};

use ringtune_shared::config::{Sources, example, load};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// What stands above all settings.
pub(crate) fn header(daemon: &str) -> String {
    let name = name(daemon);
    format!(
        "# Settings of {daemon}: every one of them, with its default. Remove the # before a key to\n\
         # change it. An environment variable (RINGTUNE__SECTION__KEY) or a flag replaces what stands here.\n\
         #\n\
         #     {daemon} config check --config /etc/ringtune/{name}.toml\n\
         #\n\
         # says whether the daemon would start with it. docs/settings.md says which settings a daemon\n\
         # that runs takes when it reads this file again (systemctl reload).\n"
    )
}

/// A setting, or the section that begins.
pub(crate) fn entry(key: &str, paragraphs: &[String], default: &Value) -> String {
    let plain = |text: &str| text.replace('`', "");
    let sentence = plain(&paragraphs[0]);
    if default.is_object() {
        return format!("\n# {sentence}\n[{key}]\n");
    }
    let allowed = paragraphs.get(1).map_or("true or false".to_owned(), |text| plain(text));
    let key = key.rsplit('.').next().unwrap_or(key);
    format!("\n{}", example(key, &sentence, allowed.trim_start_matches("Allowed: "), default))
}

/// Compares the example with what it is to be, or writes it; as it is, and with every line uncommented, it gives the
/// defaults.
pub(crate) fn check<S>(repository: &Path, daemon: &str, wanted: &str)
where
    S: Default + Serialize + DeserializeOwned,
{
    let path = repository.join(format!("deploy/examples/{}.toml", name(daemon)));
    if std::env::var_os(super::WRITE).is_some() {
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, wanted).expect("written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "{} is not what it is to be; write it anew:\n  {}\n",
        path.display(),
        super::COMMAND
    );

    let defaults = serde_json::to_value(S::default()).expect("the defaults");
    let read = |path: &Path| {
        let sources = Sources { file: Some(path.to_owned()), ..Sources::default() };
        let settings: S = load(sources).unwrap_or_else(|error| panic!("{error}"));
        serde_json::to_value(settings).expect("settings")
    };
    assert_eq!(read(&path), defaults, "as it is");
    // A key stands right behind its #, and words behind "# ".
    let uncommented: Vec<String> = found
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if key.starts_with(|first: char| first.is_ascii_lowercase()) => key.to_owned(),
            _ => line.to_owned(),
        })
        .collect();
    let keys =
        uncommented.iter().filter(|line| !line.starts_with(['#', '[']) && line.contains(" = ")).count();
    assert_eq!(keys, leaves(&defaults), "every setting is there");
    let file = std::env::temp_dir().join(format!("{daemon}-{}.toml", std::process::id()));
    fs::write(&file, uncommented.join("\n")).expect("written");
    assert_eq!(read(&file), defaults, "uncommented");
    let _ = fs::remove_file(&file);
}

fn leaves(tree: &Value) -> usize {
    tree.as_object().map_or(1, |table| table.values().map(leaves).sum())
}

fn name(daemon: &str) -> &str {
    daemon.trim_start_matches("ringtune-")
}
