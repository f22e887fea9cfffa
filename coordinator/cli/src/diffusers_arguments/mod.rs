//! A command line of another program's training script, as a job file.
//!
//! A script is data ([`options::Script`]): tables say of each of its options what becomes of it. Most have a key of the job
//! file; the others are either without effect on the result here, which is said, or refused. Defaults that differ are
//! written out.
//!
//! Sources: the parsers of diffusers' scripts (58eb52c), of kohya's sd-scripts (48d368f) and of MosaicML's diffusion-benchmark (0a5fbaa),
//! which each script's file names;
//! the options of `accelerate launch`.

mod benchmark;
mod dreambooth_lora;
mod network;
mod network_folders;
mod options;
mod text_to_image;
mod text_to_image_lora;
mod textual_inversion;

use options::{Script, reader::Reader};

/// The scripts that are known. The first is meant where a line names none.
const SCRIPTS: &[&Script] = &[
    &textual_inversion::SCRIPT,
    &text_to_image_lora::SCRIPT,
    &dreambooth_lora::SCRIPT,
    &network::SCRIPT,
    &text_to_image::SCRIPT,
    &benchmark::SCRIPT,
];

/// The names in a folder, none for a file, or nothing where a path leads nowhere.
pub type List = fn(&str) -> Option<Vec<String>>;

/// A command line that was understood.
#[derive(Debug, PartialEq, Eq)]
pub struct Translated {
    /// The job file, in TOML.
    pub job: String,
    /// `--output_dir`.
    pub output_dir: Option<String>,
    /// What was left out or is otherwise than in the script, and why, a line each.
    pub remarks: Vec<String>,
}

/// A command line that cannot be translated.
#[derive(Debug, PartialEq, Eq)]
pub struct Untranslatable {
    /// The script's name; empty: that is the problem.
    pub script: &'static str,
    /// Everything that is wrong with it, a line each.
    pub problems: Vec<String>,
    /// What could be read of the job, in TOML: what is wrong with that is to be told at the same time.
    pub rest: String,
    /// Keys of the job whose options were refused: nothing is known of them.
    pub unknown: Vec<String>,
}

impl From<String> for Untranslatable {
    fn from(problem: String) -> Self {
        Self { script: "", problems: vec![problem], rest: String::new(), unknown: Vec::new() }
    }
}

/// Reads `line`: with or without the launcher and the script's name in front, quoted as for a shell.
///
/// `list`: looks at a path of the line. A model's may be a repository instead, and folders of pictures may say in their
/// names how often these are shown.
///
/// # Errors
/// Everything that cannot be translated, a line each.
pub fn translate(line: &str, list: List) -> Result<Translated, Untranslatable> {
    // The splitter would make an empty word of a line's continuation.
    let line = line.replace("\\\r\n", "").replace("\\\n", "");
    let words = shlex::split(&line)
        .ok_or_else(|| "a quotation mark is not closed, or a backslash is last".to_owned())?;
    let at = words.iter().position(|word| word.ends_with(".py"));
    let (launcher, options) = match at {
        Some(at) => (&words[..at], &words[at + 1..]),
        None => (&words[..0], &words[..]),
    };
    let script = match at {
        Some(at) => script_of(&words[at])?,
        None => SCRIPTS[0],
    };
    let mut reader = Reader::new(script, list);
    reader.launcher(launcher);
    reader.options(options);
    reader.finish()
}

/// The script that a path leads to.
fn script_of(path: &str) -> Result<&'static Script, String> {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    SCRIPTS.iter().copied().find(|script| script.name == name).ok_or_else(|| {
        let names: Vec<&str> = SCRIPTS.iter().map(|script| script.name).collect();
        format!("{name} is not a script whose options are known; these are: {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests;
