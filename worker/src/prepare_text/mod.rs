//! `prepare-text`: files of tokens from files of text. The work is in the crate ringtune-text; here is what is around it:
//! buckets, signals, the screen.

mod arguments;
mod display;
mod error;
mod pace;
mod places;

use std::{io::Write as _, path::Path, pin::pin, sync::Arc, time::Duration};

use ringtune_shared::daemon::end_signals::EndSignals;
use ringtune_sources::{
    DownloadProgress, Environment, ModelSources, Patience, ProgressSender, Upload, progress_channel,
};
use ringtune_text::{
    MANIFEST_FILE, Manifest, PrepareOptions, Prepared, Progress, SplitOptions, TRAIN_FILE, Tokenizer,
    VAL_FILE, prepare,
};
use serde_json::{Value, json};

pub use arguments::{Format, PrepareTextArguments};
pub use error::Error;

use crate::settings::ModelCacheSettings;
use display::Display;
use places::{Here, Output};

/// Interval of screen updates.
const TICK: Duration = Duration::from_millis(250);

/// Makes the files, and prints what they are.
///
/// # Errors
/// See [`Error`]. What is done so far is kept, and the same command goes on from it.
pub async fn run(arguments: PrepareTextArguments) -> Result<(), Error> {
    let display = Arc::new(Display::new());
    let ended = prepare_and_upload(&arguments, &display).await;
    display.finish();
    let manifest = ended?;
    print(&arguments, &manifest)
}

async fn prepare_and_upload(
    arguments: &PrepareTextArguments,
    display: &Arc<Display>,
) -> Result<Manifest, Error> {
    // 1. What can be refused before anything is fetched.
    let split = SplitOptions { val_fraction: arguments.val_fraction, seed: arguments.seed };
    split.check()?;
    places::check_inputs(&arguments.inputs)?;
    let environment = Environment::of_process();
    let cache = ModelCacheSettings::default().options(&environment, Path::new("/var/lib/ringtune-worker"));
    let output = Output::parse(&arguments.output_dir, &cache)?;
    let folder = arguments.tokenizer.clone();
    tokio::task::spawn_blocking(move || Tokenizer::open(&folder)?.check_for_documents(&folder)).await??;
    let sources = ModelSources::new(environment, cache, Patience::default());
    let mut stop = Stop::listen()?;
    if let Some(bucket) = &output.bucket {
        stop.or(sources.check_writable(bucket)).await?;
    }
    // 2. The inputs, on this machine; they stay here as long as they are held.
    let mut here: Vec<Here> = Vec::new();
    for given in &arguments.inputs {
        let bringing = moving(display, "downloading", given, |progress| {
            let (sources, given) = (sources.clone(), given.clone());
            async move { places::bring(&given, &sources, &progress).await }
        });
        here.push(stop.or(bringing).await?);
    }
    // 3. The files.
    let threads = arguments.threads.map_or_else(default_threads, |threads| threads as usize);
    let options = PrepareOptions {
        inputs: here.iter().map(|here| here.input.clone()).collect(),
        output: output.folder.clone(),
        tokenizer: arguments.tokenizer.clone(),
        text_column: arguments.text_column.clone(),
        split,
        threads,
        skip_broken: arguments.skip_broken,
    };
    let prepared = watched(options, display, &mut stop).await?;
    // 4. To the bucket. Until all is there, nothing of what was made goes.
    if let Some(bucket) = &output.bucket {
        let files = [VAL_FILE, TRAIN_FILE, MANIFEST_FILE]
            .map(|name| Upload { name: name.to_owned(), path: output.folder.join(name) });
        let uploading = moving(display, "uploading to", &arguments.output_dir, |progress| {
            let (sources, bucket, stop) = (sources.clone(), bucket.clone(), &mut stop);
            async move { Ok(sources.upload(&bucket, &files, &progress, stop.asked()).await?) }
        });
        uploading.await?;
    }
    let manifest = tokio::task::spawn_blocking(move || prepared.clean()).await??;
    if output.bucket.is_some() {
        // They are in the bucket: what is left of them here is only room that others may want.
        let _ = tokio::fs::remove_dir_all(&output.folder).await;
    }
    Ok(manifest)
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs the work on a thread of its own, shows how far it is, and has it stop when somebody asks to.
async fn watched(
    options: PrepareOptions,
    display: &Arc<Display>,
    stop: &mut Stop,
) -> Result<Prepared, Error> {
    let progress = Arc::new(Progress::default());
    let (seen, said) = (Arc::clone(&progress), Arc::clone(display));
    let mut work =
        pin!(tokio::task::spawn_blocking(move || { prepare(&options, &seen, &|text: &str| said.say(text)) }));
    let mut tick = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done??),
            () = stop.asked() => {
                // Asked twice, nobody waits for the threads: a part has its name when it is whole, or none.
                if progress.is_stopped() {
                    return Err(Error::Stopped);
                }
                display.say("stopping; what is done is kept");
                progress.stop();
            }
            _ = tick.tick() => display.show(&progress.snapshot()),
        }
    }
}

/// Waits for files that are on their way and says how far they are.
async fn moving<T, F>(
    display: &Display,
    doing: &str,
    place: &str,
    begin: impl FnOnce(ProgressSender) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let (sender, receiver) = progress_channel();
    let mut move_all = pin!(begin(sender));
    let mut tick = tokio::time::interval(pace::LINES);
    loop {
        tokio::select! {
            done = &mut move_all => return done,
            _ = tick.tick() => {
                let DownloadProgress { done, total } = *receiver.borrow();
                if done < total {
                    let [done, total] = [done, total].map(|bytes| bytes as f64 / 1e6);
                    display.say(&format!("{doing} {place}: {done:.1} of {total:.1} MB"));
                }
            }
        }
    }
}

/// Ctrl-C, SIGTERM, or a terminal that is closed.
struct Stop(EndSignals);

impl Stop {
    fn listen() -> Result<Self, Error> {
        Ok(Self(EndSignals::of_command()?))
    }

    async fn asked(&mut self) {
        self.0.next().await;
    }

    /// The outcome of `work`, unless somebody asks to stop before; then it is dropped.
    async fn or<T, E: Into<Error>>(&mut self, work: impl Future<Output = Result<T, E>>) -> Result<T, Error> {
        tokio::select! {
            done = work => done.map_err(Into::into),
            () = self.asked() => Err(Error::Stopped),
        }
    }
}

fn print(arguments: &PrepareTextArguments, manifest: &Manifest) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    match arguments.output {
        Format::Json => {
            let mut object = json!({ "output_dir": arguments.output_dir });
            if let (Value::Object(fields), Ok(Value::Object(facts))) =
                (&mut object, serde_json::to_value(manifest))
            {
                fields.extend(facts);
            }
            writeln!(stdout, "{object}")?;
        }
        Format::Text => {
            let Manifest { train, val, skipped_documents, .. } = manifest;
            for (name, facts) in [(TRAIN_FILE, train), (VAL_FILE, val)] {
                writeln!(
                    stdout,
                    "{name}: {} documents, {} tokens, SHA-256 {}",
                    facts.documents, facts.tokens, facts.sha256
                )?;
            }
            if *skipped_documents > 0 {
                writeln!(stdout, "left out: {skipped_documents} documents that could not be read")?;
            }
            writeln!(stdout, "written to {}", arguments.output_dir)?;
        }
    }
    Ok(stdout.flush()?)
}
