//! `ringtune completions`, what they ask for, and `ringtune man`.

use std::{io::Write as _, time::Duration};

use clap::{Arg, ArgAction, Command, CommandFactory as _, ValueHint, builder::PossibleValuesParser};
use ringtune_proto::v1;
use ringtune_shared::{
    documents::{self, CompletionArguments, DocumentArguments, LiveWords},
    job::SCHEDULERS,
};

use super::reach::begin;
use crate::{
    arguments::{Arguments, CompleteArguments, Completed},
    error::Error,
    references::{LAST, short_id},
};

/// What shells ask for while they complete.
const LIVE: &[LiveWords] =
    &[LiveWords { value_name: "JOB", of: "jobs" }, LiveWords { value_name: "WORKER", of: "workers" }];
/// Time limit of a completion, for which the user waits.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most words of a completion.
const MOST_JOBS: usize = 200;

/// Prints what a shell reads.
pub(super) fn completions(arguments: &CompletionArguments) -> Result<(), Error> {
    let command = with_passed_on(Arguments::command());
    std::io::stdout().write_all(&documents::completions_with(command, arguments.shell, LIVE))?;
    Ok(())
}

/// The command line with options of `ringtune-worker generate` whose values are words or files: it takes them all alike.
fn with_passed_on(command: Command) -> Command {
    let path = |name: &'static str| Arg::new(name).long(name).value_hint(ValueHint::AnyPath);
    let scheduler =
        Arg::new("scheduler").long("scheduler").value_parser(PossibleValuesParser::new(SCHEDULERS));
    let output = Arg::new("output").short('o').long("output").value_hint(ValueHint::AnyPath);
    command.mut_subcommand("generate", |generate| {
        generate.args([path("model"), path("embeds").action(ArgAction::Append), scheduler, output])
    })
}

/// Prints what a job or worker may be named by, a word a line. Without a coordinator there is nothing, and nobody to tell.
pub(super) async fn complete(arguments: CompleteArguments) -> Result<(), Error> {
    let asked = async {
        let client = begin(&arguments.coordinator).await?.client;
        Ok::<_, Error>(match arguments.of {
            Completed::Jobs => {
                let jobs = client.list_jobs(v1::ListJobsRequest::default(), MOST_JOBS).await?;
                let names = jobs.iter().flat_map(|job| [short_id(&job.job_id), &job.name]);
                words([LAST].into_iter().chain(names))
            }
            Completed::Workers => {
                let workers = client.list_workers().await?;
                words(workers.iter().flat_map(|worker| [short_id(&worker.worker_id), &worker.host_name]))
            }
        })
    };
    if let Ok(Ok(words)) = tokio::time::timeout(PATIENCE, Box::pin(asked)).await {
        for word in words {
            writeln!(std::io::stdout(), "{word}")?;
        }
    }
    Ok(())
}

/// Each once, and none that a shell would read as more than a word: others choose the names of jobs.
fn words<'a>(all: impl Iterator<Item = &'a str>) -> Vec<String> {
    let is_plain = |word: &&str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !word.is_empty() && !word.starts_with('-') && word.bytes().all(plain)
    };
    let mut words: Vec<String> = Vec::new();
    for word in all.filter(is_plain) {
        if !words.iter().any(|other| other == word) {
            words.push(word.to_owned());
        }
    }
    words
}

/// Writes the man pages.
pub(super) fn man(arguments: &DocumentArguments) -> Result<(), Error> {
    documents::man_pages(Arguments::command(), "1", &arguments.folder)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use ringtune_shared::documents::{Shell, completions_with};

    use super::*;

    #[test]
    fn no_name_is_more_than_a_word_to_a_shell() {
        let names = ["star", "$(reboot)", "two words", "star", "-rf", "", "`x`", "v1.5_b"];
        assert_eq!(words(names.into_iter()), ["star", "v1.5_b"]);
    }

    #[test]
    fn what_has_few_values_is_completed() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = completions_with(with_passed_on(Arguments::command()), shell, LIVE);
            let script = String::from_utf8(script).expect("text");
            for word in
                ["dpm++_2m_karras", "submitter", "succeeded", "ringtune complete jobs", "complete workers"]
            {
                assert!(script.contains(word), "{word} is missing for {shell:?}");
            }
        }
    }
}
