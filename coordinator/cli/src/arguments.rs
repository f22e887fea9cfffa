//! The command line.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use ringtune_proto::v1::JobState;
use ringtune_shared::{
    documents::{CompletionArguments, DocumentArguments},
    job::Setting,
};

use crate::{
    access_arguments::{CREDENTIALS, CaCommand, CertCommand, LoginArguments, LogoutArguments, TokenCommand},
    argument_values::{StepRange, job_states},
    bundle_arguments::DebugCommand,
    cloud_arguments::CloudCommand,
    common_arguments::{AskArguments, CoordinatorArguments},
    help::{DRAIN, EXAMPLES, PAUSE, QUEUE, STATUS, WORKERS},
    job_file::Label,
    lora_arguments::LoraCommand,
    order_arguments::{ForkArguments, OrderArguments, SweepArguments},
    references::{JobReference, WorkerReference},
    run_arguments::{RecoverArguments, RunArguments, UpArguments},
    slurm_arguments::SlurmCommand,
};

/// Fine-tunes models on CPUs, on one machine or many: Stable Diffusion embeddings, and GPT-2s.
#[derive(Debug, Parser)]
#[command(name = "ringtune", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a job on this machine from start to end, leaving no process behind
    Run(RunArguments),
    /// Save what runs left that were killed, or could not save their files
    Recover(RecoverArguments),
    /// Start a coordinator and workers on this machine and keep them until Ctrl-C
    Up(UpArguments),
    /// Run jobs in allocations of Slurm, or lend its nodes to a coordinator
    #[command(subcommand)]
    Slurm(SlurmCommand),
    /// Make clusters on machines of a cloud, see what they cost, and remove them
    #[command(subcommand)]
    Cloud(CloudCommand),
    /// Give a job to a coordinator; prints its job id
    Submit(SubmitArguments),
    /// Show the jobs of a sweep, what differs between them, and which is the best
    Sweep(SweepArguments),
    /// List jobs, newest first unless --order-by says otherwise
    List(ListArguments),
    /// Show one job
    #[command(after_help = STATUS)]
    Status(JobArguments),
    /// Follow jobs until they end; exits with their outcome
    Watch(WatchArguments),
    /// Compute steps of a job again, and compare the state after each with the hash that is stored of it
    Verify(VerifyArguments),
    /// Stop a job and keep the artifacts that it has so far
    Cancel(CancelArguments),
    /// Have a job hold no worker until it is resumed
    #[command(after_help = PAUSE)]
    Pause(JobArguments),
    /// Have a paused job go on
    #[command(after_help = PAUSE)]
    Resume(JobArguments),
    /// Change a job while it learns, or have it show or keep what it has
    Order(OrderArguments),
    /// Go on from a checkpoint of a job as another job
    Fork(ForkArguments),
    /// Show what runs and what waits, in the order in which it comes, and why
    #[command(after_help = QUEUE)]
    Queue(AskArguments),
    /// Show how much you have of what the coordinator limits, and may have
    Limits(LimitsArguments),
    /// Delete ended jobs, with their history and artifacts
    Delete(DeleteArguments),
    /// List the workers
    #[command(after_help = WORKERS)]
    Workers(AskArguments),
    /// Give a worker no new job, and let its ring go on without it after the step that it is at
    #[command(after_help = DRAIN)]
    Drain(WorkerArguments),
    /// Give a drained worker jobs again
    Undrain(WorkerArguments),
    /// Save a job's artifacts
    Fetch(FetchArguments),
    /// Exchange a token for a certificate of your own, and make that coordinator the one that is asked
    Login(LoginArguments),
    /// Remove your certificate from this machine
    Logout(LogoutArguments),
    /// Show who the coordinator takes you for
    #[command(after_help = CREDENTIALS)]
    Whoami(AskArguments),
    /// Make, list and revoke tokens, which let workers and people in
    #[command(subcommand)]
    Token(TokenCommand),
    /// List, revoke and renew certificates
    #[command(subcommand)]
    Cert(CertCommand),
    /// Show the cluster's certificate authority, and replace its root
    #[command(subcommand)]
    Ca(CaCommand),
    /// Draw pictures with a model and learned embeddings (runs `ringtune-worker generate`)
    #[command(disable_help_flag = true)]
    Generate(PassedOnArguments),
    /// Continue a text with a language model (runs `ringtune-worker generate-text`)
    #[command(disable_help_flag = true)]
    GenerateText(PassedOnArguments),
    /// Make a folder that diffusers loads, with learned words or a trained UNet in it (runs `ringtune-worker pipeline`)
    #[command(disable_help_flag = true)]
    Pipeline(PassedOnArguments),
    /// Make files of tokens, to train on, from files of text (runs `ringtune-worker prepare-text`)
    #[command(disable_help_flag = true)]
    PrepareText(PassedOnArguments),
    /// Check whether this machine is fit for a worker, or what a job file would do (runs `ringtune-worker doctor`)
    #[command(disable_help_flag = true)]
    Doctor(PassedOnArguments),
    /// Look into LoRA files, convert them between programs, and lower their rank
    #[command(subcommand)]
    Lora(LoraCommand),
    /// Collect what a bug report needs
    #[command(subcommand)]
    Debug(DebugCommand),
    /// Print what a shell needs to complete this command line
    #[command(
        after_help = "Example: ringtune completions bash > ~/.local/share/bash-completion/completions/ringtune"
    )]
    Completions(CompletionArguments),
    /// Print the words that a shell completes with
    #[command(hide = true)]
    Complete(CompleteArguments),
    /// Write the man pages into a folder
    #[command(hide = true)]
    Man(DocumentArguments),
}

/// Arguments of `submit`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  JOB=$(ringtune submit dicoo.toml)          prints the job id
  ringtune submit --watch dicoo.toml         stays until the job ends; exits with its outcome
  ringtune submit --watch -o out dicoo.toml  and saves its files, also of a job that failed
  ringtune submit --again dicoo --set train.seed=7
  ringtune submit dicoo.toml --set sweep.train.seed=1..8    eight jobs; prints the sweep's id

The command uploads the images to the coordinator. The workers read the model folder:
its path must be the same on each of them.")]
pub struct SubmitArguments {
    /// The job file; one with [sweep] makes several jobs
    #[arg(value_name = "JOB.toml", required_unless_present = "again")]
    pub job: Option<PathBuf>,
    /// Instead of a job file: this earlier job again, with --set and --label put into it
    #[arg(long, value_name = "JOB", conflicts_with = "job")]
    pub again: Option<JobReference>,
    /// Another value for a key of the job file, as TOML or a plain word: --set train.seed=7 (may be repeated)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// A label for the job, which replaces one in the job file's [queue] (may be repeated)
    #[arg(long, value_name = "KEY=VALUE")]
    pub label: Vec<Label>,
    /// Follow the job until it ends
    #[arg(long)]
    pub watch: bool,
    /// With --watch: where to save the job's artifacts once it has ended, however it did; a folder or s3://BUCKET/PREFIX
    #[arg(short = 'o', long = "output-dir", value_name = "PLACE", requires = "watch")]
    pub output_dir: Option<PathBuf>,
    /// Go on from the newest checkpoint of this earlier job, as its resume_from_checkpoint would
    #[arg(long, value_name = "JOB")]
    pub resume_from: Option<JobReference>,
    /// Makes it safe to submit the same job again: the same id gives the same job [default: a new one, which is printed
    /// if the coordinator does not answer]
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

/// Arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune list --state queued --order-by 'priority desc'
  ringtune list --label project=dicoo --filter 'owner=ada AND kind=generate'

Fields of --filter: state, name, owner, priority, kind, sweep, labels.KEY. Put a value in double
quotes if it has other characters than letters, digits and . _ / : @ + -")]
pub struct ListArguments {
    /// Only jobs in this state (may be repeated)
    #[arg(long, value_name = "STATE", ignore_case = true, value_parser = job_states())]
    pub state: Vec<JobState>,
    /// Only jobs of which all of this is true: FIELD=VALUE, several joined by " AND "
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Only jobs with this label (may be repeated)
    #[arg(long, value_name = "KEY=VALUE")]
    pub label: Vec<Label>,
    /// create_time, priority or name; add " desc" for the greatest first [default: create_time desc]
    #[arg(long, value_name = "FIELD", default_value = "", hide_default_value = true)]
    pub order_by: String,
    /// At most this many jobs
    #[arg(
        long,
        value_name = "N",
        default_value_t = 50,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub limit: u32,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

/// Arguments of the commands that take one job: `status`.
#[derive(Debug, Args)]
pub struct JobArguments {
    /// The job: its id, 4 or more digits of the id's beginning or end, its name, or `last` (the newest that is no verification)
    #[arg(value_name = "JOB")]
    pub job: JobReference,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

/// Arguments of `watch`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune watch JOB                   its whole history, then its progress until it ends
  ringtune watch JOB JOB               both from now on, until both have ended
  ringtune watch --all --output json   all that happens, one object a line, until Ctrl-C")]
pub struct WatchArguments {
    /// The jobs: their ids, 4 or more digits of an id's beginning or end, names, or `last` (the newest that is no verification)
    #[arg(value_name = "JOB", required_unless_present = "all")]
    pub jobs: Vec<JobReference>,
    /// All jobs, including those that are created later, until Ctrl-C
    #[arg(long, conflicts_with = "jobs")]
    pub all: bool,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune verify JOB                        every step that is stored
  ringtune verify JOB --steps 100-120        from the newest checkpoint before step 100

With each step the coordinator stores the SHA-256 of the state after it: what is learned, and all
that the next steps depend on. One worker of the numerics class that the job was computed on does
the steps again, from the job's own pictures and model, with as many threads. It makes no files.

The verification is a job of its own: `list`, `status`, `watch` and `cancel` take it, and Ctrl-C
only stops watching. The last line says \"same: steps A to B of JOB\", or names the first step that
differs with both hashes.

Exit codes: 0 all steps are the same, 1 one differs or the verification failed, 2 wrong usage,
3 the coordinator cannot be reached.")]
pub struct VerifyArguments {
    /// The job: its id, 4 or more digits of the id's beginning or end, its name, or `last` (the newest that is no verification); it may still run
    #[arg(value_name = "JOB")]
    pub job: JobReference,
    /// Only these steps, both ends included, or only one [default: all that are stored]
    #[arg(long, value_name = "A-B", allow_hyphen_values = true)]
    pub steps: Option<StepRange>,
    /// Makes it safe to ask the same again: the same id gives the same verification [default: a new one, which is printed
    /// if the coordinator does not answer]
    #[arg(long, value_name = "ID")]
    pub request_id: Option<String>,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

/// Arguments of `cancel`.
#[derive(Debug, Args)]
pub struct CancelArguments {
    /// Which job, and how to print.
    #[command(flatten)]
    pub job: JobArguments,
    /// Kept with the job
    #[arg(long, value_name = "TEXT", default_value = "cancelled by the user")]
    pub reason: String,
}

/// Arguments of `delete`.
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing asks whether you are sure, and nothing brings a deleted job back: fetch what you want to
keep before. A job that has not ended is refused: cancel it first. Prints the id of each job that
is gone. Goes on after a job that cannot be deleted, and then ends with the code of the first one.")]
pub struct DeleteArguments {
    /// The jobs: their ids, 4 or more digits of an id's beginning or end, names, or `last` (the newest that is no verification)
    #[arg(value_name = "JOB", required = true)]
    pub jobs: Vec<JobReference>,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

/// Arguments of `limits`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringtune limits
  ringtune limits ada                     what ada has; you see others' if you see all jobs
  ringtune limits --output json | jq '.limits[] | select(.used == .allowed)'

NOW counts ranks of rings that run or form, jobs that wait or are paused, and files that you
uploaded or that your jobs made. ALLOWED is `any` where there is no limit. Whoever runs the
coordinator changes a limit by its setting.")]
pub struct LimitsArguments {
    /// Whose [default: yours]; where the coordinator asks nobody who they are: the owner that a job file names
    #[arg(value_name = "OWNER", default_value = "", hide_default_value = true)]
    pub owner: String,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

/// Arguments of `drain` and `undrain`.
#[derive(Debug, Args)]
pub struct WorkerArguments {
    /// The worker: its id, 4 or more digits of the id's beginning or end, or the name of its host
    #[arg(value_name = "WORKER")]
    pub worker: WorkerReference,
    /// Which coordinator, and how to print.
    #[command(flatten)]
    pub ask: AskArguments,
}

/// Arguments of `fetch`.
#[derive(Debug, Args)]
pub struct FetchArguments {
    /// Which job, and how to print.
    #[command(flatten)]
    pub job: JobArguments,
    /// Where to save the artifacts: a folder or s3://BUCKET/PREFIX [default: ringtune-out/NAME]
    #[arg(short = 'o', long = "output-dir", value_name = "PLACE")]
    pub output_dir: Option<PathBuf>,
    /// Only this artifact (may be repeated)
    #[arg(long, value_name = "NAME")]
    pub name: Vec<String>,
}

/// Arguments of `complete`.
#[derive(Debug, Args)]
pub struct CompleteArguments {
    /// Of what
    #[arg(value_enum)]
    pub of: Completed,
    /// Which coordinator.
    #[command(flatten)]
    pub coordinator: CoordinatorArguments,
}

/// What has words that only the coordinator knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Completed {
    /// Their ids' ends, and names
    Jobs,
    /// The same with their hosts' names
    Workers,
}

/// Arguments that another program takes.
#[derive(Debug, Args)]
pub struct PassedOnArguments {
    /// Passed on to ringtune-worker; try --help
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS", value_hint = ValueHint::AnyPath)]
    pub arguments: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn examples_keep_their_lines() {
        // clap breaks what is longer than 100, in the middle of commands too.
        assert_eq!(ringtune_shared::documents::long_lines(&Arguments::command()), Vec::<String>::new());
    }

    #[test]
    fn numbers_below_what_is_allowed_are_told_the_range() {
        for (line, says) in [
            ("run x.toml --workers -1", "allowed: 1 to 256"),
            ("up --workers -1", "-1 is not in 1..=256"),
            ("list --limit -1", "-1 is not in 1.."),
            ("token create --role worker --uses -1", "-1 is not in 1..=10000"),
        ] {
            let error = Arguments::try_parse_from(["ringtune"].into_iter().chain(line.split(' ')));
            let text = error.expect_err(line).to_string();
            assert!(text.contains(says), "{line}: {text}");
        }
        let verify = ["ringtune", "verify", "01a22026-cdf3-728e-bdef-20f441b7eb6d", "--steps", "-4"];
        let text = Arguments::try_parse_from(verify).expect_err("no step").to_string();
        assert!(text.contains("100-120, or one"), "{text}");
    }

    #[test]
    fn generate_passes_everything_on() {
        let arguments =
            Arguments::try_parse_from(["ringtune", "generate", "--help", "-o", "x", "--output", "y"])
                .expect("parses");
        let Command::Generate(passed_on) = arguments.command else { panic!("not generate") };
        assert_eq!(passed_on.arguments, ["--help", "-o", "x", "--output", "y"]);
    }

    #[test]
    fn watch_takes_jobs_or_all_of_them() {
        let id = uuid::Uuid::nil().to_string();
        let parse = |arguments: &[&str]| {
            Arguments::try_parse_from(["ringtune", "watch"].iter().chain(arguments)).map(
                |parsed| match parsed.command {
                    Command::Watch(watch) => (watch.jobs.len(), watch.all),
                    _ => panic!("not watch"),
                },
            )
        };
        assert_eq!(parse(&[&id, &id]).expect("two"), (2, false));
        assert_eq!(parse(&["--all"]).expect("all"), (0, true));
        assert!(parse(&[]).is_err() && parse(&[&id, "--all"]).is_err());
    }

    #[test]
    fn jobs_and_workers_are_named_in_one_way_everywhere() {
        for line in [
            "status dicoo",
            "watch dicoo last",
            "cancel …41b7eb6d",
            "fetch 41b7eb6d",
            "verify dicoo",
            "delete dicoo last",
            "submit x.toml --resume-from last",
            "debug bundle --job last",
            "drain node-1",
            "undrain 5a50",
            "cert revoke --worker node-1",
        ] {
            let words = ["ringtune"].into_iter().chain(line.split(' '));
            assert!(Arguments::try_parse_from(words).is_ok(), "{line}");
        }
    }
}
