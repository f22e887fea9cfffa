//! `ringtune lora`: files of LoRAs, without any daemon.

mod merge;

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufWriter},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use ringtune_shared::{
    files::{FileError, NewFile, read_file},
    lora::{Format, LARGEST_FILE, LoraError, LoraFile, part},
    state::StateError,
};
use serde_json::{Map, json};

use self::merge::merge;
use super::table::facts;
use crate::{
    error::Error,
    lora_arguments::{LoraCommand, LoraInfoArguments},
    output::{Output, remark, size_text},
};

/// How often a long calculation says how far it is.
const PACE: Duration = Duration::from_secs(2);
/// Frequent tags that are shown.
const MOST_TAGS: usize = 10;

/// Runs the subcommand, on a thread that may block.
pub(super) async fn lora(command: LoraCommand) -> Result<(), Error> {
    // Whoever ends this function early, as Ctrl-C does, no longer holds it: a merge looks at it, and leaves nothing behind.
    let wanted = Arc::new(());
    let still = Arc::downgrade(&wanted);
    let run = move || match command {
        LoraCommand::Merge(arguments) => merge(&arguments, still),
        LoraCommand::Info(arguments) => info(&arguments),
        LoraCommand::Convert(arguments) => {
            let bytes = read(&arguments.file)?;
            write(&parsed(&arguments.file, &bytes)?, arguments.to, &arguments.file, &arguments.out)
        }
        LoraCommand::Resize(arguments) => {
            let bytes = read(&arguments.file)?;
            let mut lora = parsed(&arguments.file, &bytes)?;
            let mut told = Instant::now();
            let resized = lora.resize(arguments.rank, |done, all| {
                if told.elapsed() >= PACE {
                    told = Instant::now();
                    remark(&format!("{done} of {all} modules"));
                }
            });
            write(&lora, lora.format, &arguments.file, &arguments.out)?;
            let (lowered, all) = (resized.lowered, lora.modules.len());
            let kept = resized.least_kept * 100.0;
            remark(&format!(
                "lowered {lowered} of {all} modules; each keeps at least {kept:.1} % of its product"
            ));
            Ok(())
        }
    };
    let done = tokio::task::spawn_blocking(run).await;
    drop(wanted);
    done.map_err(io::Error::other)?
}

pub(super) fn unusable(path: &Path, error: impl Into<LoraError>) -> Error {
    Error::Usage(format!("{}: {}", path.display(), error.into()))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    read_file(path, LARGEST_FILE).map_err(|error| unusable(path, error))
}

fn parsed<'a>(path: &Path, bytes: &'a [u8]) -> Result<LoraFile<'a>, Error> {
    LoraFile::from_bytes(bytes).map_err(|error| unusable(path, error))
}

/// Writes a file whole or not at all, and reads it back.
fn write(lora: &LoraFile<'_>, format: Format, from: &Path, to: &Path) -> Result<(), Error> {
    if fs::canonicalize(to).is_ok_and(|to| fs::canonicalize(from).is_ok_and(|from| from == to)) {
        let problem = "-o is the file that is read; give another name, so that nothing is lost if the result disappoints";
        return Err(Error::Usage(format!("{}: {problem}", to.display())));
    }
    let failed = |doing, source| Error::File { doing, path: to.to_owned(), source };
    let unwritten = |error: FileError| failed("cannot write", error.cause);
    let mut file = NewFile::create(to).map_err(unwritten)?;
    lora.write(format, BufWriter::new(&mut file)).map_err(|error| match error {
        LoraError::Unwritten(StateError::Io(source)) => failed("cannot write", source),
        other => unusable(from, other),
    })?;
    file.commit().map_err(unwritten)?;
    let bytes = read(to)?;
    if parsed(to, &bytes)?.modules != lora.modules {
        return Err(failed("cannot read back", io::Error::other("it holds something else than was written")));
    }
    Ok(())
}

fn info(arguments: &LoraInfoArguments) -> Result<(), Error> {
    let bytes = read(&arguments.file)?;
    let lora = parsed(&arguments.file, &bytes)?;
    let pairs = || lora.modules.values();
    let (ranks, alphas) = (counts(pairs().map(|pair| pair.rank)), counts(pairs().map(|pair| pair.alpha)));
    let types = counts(pairs().flat_map(|pair| [&pair.down, &pair.up]).map(|factor| factor.kind.dtype()));
    let parts = counts(lora.modules.keys().map(|module| part(module)));
    let dora = pairs().filter(|pair| pair.dora_scale.is_some()).count();
    let (tags, size) = (lora.frequent_tags(MOST_TAGS), bytes.len());
    let mut lines = vec![
        ("format", lora.format.word()),
        ("base", lora.base.title().to_owned()),
        ("modules", format!("{}: {}", lora.modules.len(), listed(&parts))),
        ("rank", listed(&ranks)),
        ("alpha", listed(&alphas)),
        ("type", listed(&types)),
        ("DoRA", if dora == 0 { "no".to_owned() } else { format!("{dora} modules") }),
        ("size", size_text(i64::try_from(size).unwrap_or(i64::MAX))),
    ];
    lines.extend(lora.facts().map(|(key, text)| (key, text.to_owned())));
    lines.extend((!tags.is_empty()).then(|| ("tags", tags.join(", "))));
    let object = json!({
        "format": lora.format.word(), "base": lora.base.title(), "modules": lora.modules.len(), "parts": map(&parts),
        "ranks": map(&ranks), "alphas": map(&alphas), "types": map(&types), "dora_modules": dora, "bytes": size,
        "metadata": lora.facts().collect::<BTreeMap<_, _>>(), "frequent_tags": tags,
    });
    Ok(Output::new(arguments.output.output).data(&facts(&lines), &object)?)
}

/// What there is with how often, the most frequent first.
fn counts(all: impl Iterator<Item = impl ToString>) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for one in all {
        *counts.entry(one.to_string()).or_default() += 1;
    }
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

/// "16 (192), 8 (72)"; without the number where there is one only.
fn listed(counts: &[(String, usize)]) -> String {
    match counts {
        [(one, _)] => one.clone(),
        _ => counts.iter().map(|(one, count)| format!("{one} ({count})")).collect::<Vec<_>>().join(", "),
    }
}

fn map(counts: &[(String, usize)]) -> Map<String, serde_json::Value> {
    counts.iter().map(|(one, count)| (one.clone(), json!(count))).collect()
}
