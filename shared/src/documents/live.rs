//! Completions that ask the command itself: which jobs there are is known to nobody else.
//!
//! clap's scripts know fixed words alone. Each argument of which the words are asked for gets a mark as its only value, and
//! in the script the mark is replaced by the question.

use clap::{Arg, Command, ValueHint, builder::PossibleValuesParser};

use super::Shell;

/// Values that `COMMAND complete OF` prints, a word a line. They have no characters that a shell reads.
#[derive(Clone, Copy, Debug)]
pub struct LiveWords {
    /// Of arguments whose values are called so in the help.
    pub value_name: &'static str,
    /// The kind of candidates.
    pub of: &'static str,
}

impl LiveWords {
    fn mark(self) -> &'static str {
        // A name that no value has.
        match self.of {
            "jobs" => "@jobs@",
            _ => "@workers@",
        }
    }

    fn is_of(self, argument: &Arg) -> bool {
        argument
            .get_value_names()
            .is_some_and(|names| names.iter().any(|name| name.as_str() == self.value_name))
    }

    /// The shell's words for what the command prints.
    fn question(self, command: &str) -> String {
        format!("{command} complete {} 2>/dev/null", self.of)
    }
}

/// Of a positional argument that is a path, where only bash has to be told.
const FILES: &str = "@files@";

/// The command with marks.
pub(super) fn marked(command: Command, words: &'static [LiveWords], shell: Shell) -> Command {
    let mark = |argument: Arg| {
        let is_path = matches!(
            argument.get_value_hint(),
            ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath
        );
        match words.iter().find(|one| one.is_of(&argument)) {
            Some(words) => argument.value_parser(PossibleValuesParser::new([words.mark()])),
            None if is_path && argument.is_positional() && shell == Shell::Bash => {
                argument.value_parser(PossibleValuesParser::new([FILES]))
            }
            None => argument,
        }
    };
    command.mut_args(mark).mut_subcommands(|inner| marked(inner, words, shell))
}

/// The script with questions in the place of marks.
pub(super) fn questions(script: &str, command: &Command, words: &[LiveWords], shell: Shell) -> String {
    match shell {
        Shell::Bash => bash(script, command.get_name(), words),
        Shell::Zsh => words.iter().fold(script.to_owned(), |script, words| {
            let question = words.question(command.get_name());
            script
                .replace(&format!("({})", words.mark()), &format!("{{compadd -- ${{(f)\"$({question})\"}}}}"))
        }),
        Shell::Fish => {
            let script = words.iter().fold(script.to_owned(), |script, words| {
                let question = words.question(command.get_name());
                script.replace(&format!("\"{}\\t''\"", words.mark()), &format!("\"({question})\""))
            });
            script + &fish_positionals(command, &[], command.get_name(), words)
        }
    }
}

/// Option by option the mark is replaced where it stands. Of a positional argument it is one of the options' words: there,
/// only a word that begins with a hyphen is an option.
fn bash(script: &str, name: &str, words: &[LiveWords]) -> String {
    const OPTIONS: &str = "            opts=\"";
    const ALL: &str = "            COMPREPLY=( $(compgen -W \"${opts}\" -- \"${cur}\") )";
    let questions: Vec<(&str, String)> =
        words.iter().map(|words| (words.mark(), words.question(name))).collect();
    // Replaces all words in the block of one command.
    let mut instead: Option<String> = None;
    let mut text = String::with_capacity(script.len());
    for line in script.lines() {
        let mut line = line.to_owned();
        if line.starts_with(OPTIONS) {
            instead = None;
            if line.contains(FILES) {
                // bash's own way of completing, which the script asks for where it finds nothing.
                instead = Some("            COMPREPLY=()".to_owned());
            }
            for (mark, question) in &questions {
                if line.contains(mark) {
                    instead = Some(format!(
                        "            COMPREPLY=( $(compgen -W \"$({question})\" -- \"${{cur}}\") )"
                    ));
                }
                line = line.replace(&format!(" {mark}"), "").replace(mark, "");
            }
            line = line.replace(&format!(" {FILES}"), "").replace(FILES, "");
        } else if let Some(instead) = &instead {
            if let Some(before) = line.split_once(" || ${COMP_CWORD} -eq ").map(|(before, _)| before) {
                line = format!("{before} ]] ; then");
            } else if line == ALL {
                line.clone_from(instead);
            }
        }
        for (mark, question) in &questions {
            line = line.replace(mark, &format!("$({question})"));
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Lines for the positional arguments, of which clap's script has none.
fn fish_positionals(command: &Command, path: &[&str], name: &str, words: &[LiveWords]) -> String {
    let is_here = match path {
        [] => String::new(),
        [first] => format!("__fish_{name}_using_subcommand {first}"),
        [first, rest @ ..] => {
            format!(
                "__fish_{name}_using_subcommand {first}; and __fish_seen_subcommand_from {}",
                rest.join(" ")
            )
        }
    };
    let asked = words.iter().filter(|words| command.get_positionals().any(|argument| words.is_of(argument)));
    let lines = asked
        .map(|words| format!("complete -c {name} -n \"{is_here}\" -f -a \"({})\"\n", words.question(name)));
    let mut text: String = lines.collect();
    for inner in command.get_subcommands() {
        text += &fish_positionals(inner, &[path, &[inner.get_name()]].concat(), name, words);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::value_parser;

    use super::{super::completions_with, *};

    const WORDS: &[LiveWords] = &[LiveWords { value_name: "JOB", of: "jobs" }];

    fn script(shell: Shell) -> String {
        let command = Command::new("tool")
            .subcommand(
                Command::new("status")
                    .arg(Arg::new("job").value_name("JOB").required(true))
                    .arg(Arg::new("quiet").long("quiet").num_args(0)),
            )
            .subcommand(
                Command::new("submit")
                    .arg(Arg::new("file").value_parser(value_parser!(PathBuf)))
                    .arg(Arg::new("from").long("from").value_name("JOB")),
            );
        String::from_utf8(completions_with(command, shell, WORDS)).unwrap()
    }

    #[test]
    fn what_only_the_command_knows_is_asked_for_in_every_shell() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            assert!(!script.contains('@') || !script.contains("@jobs@"), "{script}");
            assert!(script.matches("tool complete jobs 2>/dev/null").count() >= 2, "{shell:?}: {script}");
        }
    }

    /// bash itself says what it would offer.
    #[test]
    fn bash_offers_jobs_options_and_files_where_they_belong() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("script"), script(Shell::Bash)).unwrap();
        let tool = "#!/bin/sh\n[ \"$*\" = 'complete jobs' ] && printf 'last\\n41b7eb6d\\n'\n";
        std::fs::write(folder.path().join("tool"), tool).unwrap();
        let offered = |words: &str, at: usize| {
            let run = format!(
                "chmod +x tool; PATH=$PWD:$PATH; . ./script; COMP_WORDS=({words}); COMP_CWORD={at}; \
                 _tool tool \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{}]}}\"; echo \"${{COMPREPLY[*]}}\"",
                at - 1
            );
            let ran =
                std::process::Command::new("bash").args(["-c", &run]).current_dir(folder.path()).output();
            String::from_utf8(ran.unwrap().stdout).unwrap().trim().to_owned()
        };
        assert_eq!(offered("tool status ''", 2), "last 41b7eb6d");
        assert_eq!(offered("tool status 41", 2), "41b7eb6d");
        assert_eq!(offered("tool status --q", 2), "--quiet");
        assert_eq!(offered("tool submit --from ''", 3), "last 41b7eb6d");
        // Nothing: then bash looks for files.
        assert_eq!(offered("tool submit ''", 2), "");
    }
}
