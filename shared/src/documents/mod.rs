//! Man pages and completions, from the command line itself.

mod live;

use std::{
    io,
    path::{Path, PathBuf},
};

use clap::{Args, Command, ValueEnum};

pub use live::LiveWords;

/// Of the texts behind the options of `--help`.
const LONGEST_LINE: usize = 99;

/// Of `man`.
#[derive(Args, Clone, Debug)]
pub struct DocumentArguments {
    /// The folder; one that is not there is made
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

/// Of `completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionArguments {
    /// Which shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// A shell that completes command lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// GNU's
    Bash,
    /// Z shell
    Zsh,
    /// The friendly one
    Fish,
}

/// The completion script of `command` for `shell`.
pub fn completions(command: Command, shell: Shell) -> Vec<u8> {
    completions_with(command, shell, &[])
}

/// As above, with words that the shell asks the command for while it completes.
pub fn completions_with(command: Command, shell: Shell, words: &'static [LiveWords]) -> Vec<u8> {
    let generator = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let command = shown(command);
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(generator, &mut live::marked(command.clone(), words, shell), name, &mut text);
    live::questions(&String::from_utf8_lossy(&text), &command, words, shell).into_bytes()
}

/// Lines of the texts behind the options that `--help` would break, each with its command's name: clap breaks what is longer
/// than 100, in the middle of commands too. Of the command and all its subcommands; for tests.
pub fn long_lines(command: &Command) -> Vec<String> {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let long = text.lines().filter(|line| line.chars().count() > LONGEST_LINE);
    let mut found: Vec<String> = long.map(|line| format!("{}: {line}", command.get_name())).collect();
    found.extend(command.get_subcommands().flat_map(long_lines));
    found
}

/// Writes a page for the command and one for each of its subcommands: `ringtune.1`, `ringtune-token-create.1`. `section`:
/// 1 for commands, 8 for daemons.
///
/// # Errors
/// The file system's.
pub fn man_pages(command: Command, section: &str, folder: &Path) -> io::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder)?;
    let mut command = shown(command).disable_help_subcommand(true);
    command.build();
    let name = command.get_name().to_owned();
    let mut written = Vec::new();
    let mut open = vec![(name, command)];
    while let Some((name, command)) = open.pop() {
        for inner in command.get_subcommands() {
            open.push((format!("{name}-{}", inner.get_name()), inner.clone()));
        }
        let mut text = Vec::new();
        clap_mangen::Man::new(command.display_name(&name).version(crate::version::VERSION))
            .title(name.to_uppercase())
            .section(section)
            .source(format!("Ringtune {}", crate::version::VERSION))
            .manual("Ringtune")
            .render(&mut text)?;
        let path = folder.join(format!("{name}.{section}"));
        std::fs::write(&path, in_ascii(&String::from_utf8_lossy(&text)))?;
        written.push(path);
    }
    Ok(written)
}

/// roff has names for all other symbols, and reads them wherever it runs.
fn in_ascii(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut ascii, symbol| {
        match symbol.is_ascii() {
            true => ascii.push(symbol),
            false => ascii += &format!("\\[u{:04X}]", u32::from(symbol)),
        }
        ascii
    })
}

/// The command without what users are not shown.
fn shown(command: Command) -> Command {
    let mut kept = Command::new(command.get_name().to_owned());
    // clap has no way to remove a subcommand: what is public is put into a new one.
    kept = kept
        .args(command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned())
        .args_conflicts_with_subcommands(command.is_args_conflicts_with_subcommands_set())
        .subcommand_required(command.is_subcommand_required_set())
        .subcommands(command.get_subcommands().filter(|inner| !inner.is_hide_set()).cloned().map(shown));
    if let Some(about) = command.get_about() {
        kept = kept.about(about.clone());
    }
    if let Some(about) = command.get_long_about() {
        kept = kept.long_about(about.clone());
    }
    if let Some(text) = command.get_after_help() {
        kept = kept.after_help(text.clone());
    }
    if let Some(text) = command.get_after_long_help() {
        kept = kept.after_long_help(text.clone());
    }
    kept
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    fn command() -> Command {
        Command::new("tool")
            .about("Does things")
            .arg(Arg::new("quiet").long("quiet").action(ArgAction::SetTrue))
            .arg(Arg::new("inner").long("inner").hide(true).action(ArgAction::SetTrue))
            .subcommand(Command::new("token").subcommand(Command::new("create").about("Makes one…")))
            .subcommand(Command::new("man").hide(true))
    }

    #[test]
    fn every_subcommand_that_is_shown_has_a_page_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let mut pages = man_pages(command(), "1", folder.path()).unwrap();
        pages.sort();
        let names: Vec<&str> = pages.iter().map(|page| page.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["tool-token-create.1", "tool-token.1", "tool.1"]);
        let text = std::fs::read_to_string(folder.path().join("tool.1")).unwrap();
        assert!(text.contains("quiet") && !text.contains("inner"), "{text}");
        let text = std::fs::read_to_string(folder.path().join("tool-token-create.1")).unwrap();
        assert!(text.contains("Makes one\\[u2026]"), "{text}");
    }

    #[test]
    fn shells_complete_what_is_shown() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = String::from_utf8(completions(command(), shell)).unwrap();
            assert!(text.contains("token") && text.contains("quiet"), "{shell:?}");
            assert!(!text.contains("inner"), "{shell:?}");
        }
    }
}
