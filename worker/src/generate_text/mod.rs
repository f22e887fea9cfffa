//! `generate-text`: a prompt, continued by a language model.
//!
//! `generation.rs` makes the texts for whoever wants them, this command and jobs of kind `generate_text`; `sampling.rs`
//! draws; the engine's `text_context.rs` decides what the engine is fed.
//!
//! Invariant: the engine gives logits and draws nothing. A token follows from them, the options and (seed, number of
//! the text, place).

mod arguments;
mod error;
mod generation;
mod output;
mod prompt;
mod sampling;

use std::{io::Write as _, pin::pin, sync::Arc, time::Instant};

use ringtune_shared::{
    daemon::end_signals::EndSignals,
    job::{HubModel, ModelLocation},
};
use ringtune_text::Tokenizer;

pub use arguments::{Format, GenerateTextArguments, PrecisionName};
pub use error::Error;
pub use generation::{Ended, Generation, GenerationOptions, Next, TextOptions};
pub use prompt::tokens as prompt_tokens;
pub use sampling::{COLDEST, DrawName, HOTTEST, NotFinite, Sampling, WrongSampling};

use crate::{
    base_model::WantedFiles,
    engine::{
        EngineHandle, LanguageModelSource, OpenTextModel, Precision, StartEngine, TextContext, TextModelInfo,
        Threads,
    },
    generate::base_model::bring,
};
use output::{Facts, Output};
use prompt::PromptSource;

/// Precision and threads, unless the arguments set them.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Compute threads.
    pub threads: usize,
    /// Whether the processor has bf16.
    pub has_bf16: bool,
    /// Starts the engine.
    pub start: StartEngine,
}

/// Makes and prints all texts that were asked for. A reader that went away is no error.
///
/// # Errors
/// See [`Error`].
pub async fn run(arguments: GenerateTextArguments, machine: Machine) -> Result<(), Error> {
    match make(&arguments, machine).await {
        Err(error) if error.is_closed_pipe() => Ok(()),
        ended => ended,
    }
}

async fn make(arguments: &GenerateTextArguments, machine: Machine) -> Result<(), Error> {
    let mut stop = Stop::listen()?;
    // 1. What can be refused without the model.
    let (precision, location) = (check(arguments, machine)?, location(arguments)?);
    let source = PromptSource::of(arguments);
    let prompt = stop.or(async { tokio::task::spawn_blocking(|| source.read()).await? }).await?;
    // Its cache keeps what it holds as long as this value lives.
    let model = stop.or(async { Ok(bring(&location, WantedFiles::Words { weights: true }).await?) }).await?;
    let folder = model.folder.clone();
    let opened = tokio::task::spawn_blocking(move || Tokenizer::open(&folder)).await?;
    let tokenizer = Arc::new(opened?);
    let (encoder, text) = (Arc::clone(&tokenizer), prompt.clone());
    let tokens = tokio::task::spawn_blocking(move || prompt::tokens(&encoder, &text)).await??;
    // 2. The model.
    let threads = arguments.threads.map_or(machine.threads, |threads| threads as usize);
    say(&format!("loading {} ({threads} threads, {precision})", arguments.model));
    let request =
        OpenTextModel { source: LanguageModelSource::folder(model.folder.clone()), precision, threads };
    let (engine, info) = stop.or(open(machine.start, request)).await?;
    let unknown = tokens.iter().find(|token| **token >= info.vocab_size as i64);
    if let Some(token) = unknown {
        let (folder, vocabulary) = (model.folder.clone(), info.vocab_size);
        return Err(Error::Vocabulary { folder, token: *token, vocabulary });
    }
    // 3. The texts.
    let options = arguments.options().of_model(info, &tokenizer);
    let context = TextContext::new(tokens, info.n_positions);
    let mut generation = Generation::new(engine, options, context);
    let mut output = Output::new(arguments.output, prompt);
    for sample in 0..arguments.num_samples {
        let text = Text { sample, tokenizer: &tokenizer, n_positions: info.n_positions };
        if text.make(&mut generation, &mut output, &mut stop).await? == Ended::Interrupted {
            say("stopped");
            break;
        }
    }
    Ok(())
}

/// Checks the options alone; returns the precision.
fn check(arguments: &GenerateTextArguments, machine: Machine) -> Result<Precision, Error> {
    arguments.options().sampling.check().map_err(|WrongSampling { field, given, allowed }| {
        let option = if field == "top_p" { "--top-p" } else { "--temperature" };
        Error::Option { option, problem: format!("is {given}; allowed: {allowed}") }
    })?;
    match arguments.precision {
        Some(PrecisionName::Bf16) if !machine.has_bf16 => Err(Error::Option {
            option: "--precision",
            problem: "is bf16; allowed: fp32, as this processor has no bf16 instructions".to_owned(),
        }),
        Some(PrecisionName::Fp32) => Ok(Precision::Fp32),
        None if !machine.has_bf16 => Ok(Precision::Fp32),
        _ => Ok(Precision::Bf16),
    }
}

/// The model's location.
fn location(arguments: &GenerateTextArguments) -> Result<ModelLocation, Error> {
    let GenerateTextArguments { model, revision, .. } = arguments;
    let location = ModelLocation::parse(model, revision).map_err(|(field, problem)| {
        let option = if field == "model.revision" { "--revision" } else { "MODEL" };
        Error::Option { option, problem }
    })?;
    if matches!(&location, ModelLocation::Local(folder) if !folder.is_dir()) {
        let problem = format!(
            "'{model}' is no folder; allowed: the folder of a GPT-2 as transformers saves it, hf://ORG/NAME or s3://BUCKET/PREFIX{}",
            if HubModel::is_repository(model) {
                format!("; for the hub's model write hf://{model}")
            } else {
                String::new()
            }
        );
        return Err(Error::Option { option: "MODEL", problem });
    }
    Ok(location)
}

/// Starts the engine and opens the model.
async fn open(start: StartEngine, request: OpenTextModel) -> Result<(EngineHandle, TextModelInfo), Error> {
    let threads = Threads::anywhere(request.threads);
    let engine = tokio::task::spawn_blocking(move || start(threads)).await??;
    let info = engine.open_text_model(request).await?;
    Ok((engine, info))
}

/// One text.
#[derive(Clone, Copy, Debug)]
struct Text<'a> {
    sample: u32,
    tokenizer: &'a Tokenizer,
    n_positions: usize,
}

impl Text<'_> {
    /// Makes and prints it.
    async fn make(
        self,
        generation: &mut Generation,
        output: &mut Output,
        stop: &mut Stop,
    ) -> Result<Ended, Error> {
        let started = Instant::now();
        generation.begin(self.sample);
        let mut cropped = self.say_if_cropped(generation, false);
        let begun = stop.or(async { Ok(output.begin(self.sample).await?) }).await;
        let mut ended = ended_by_stop(begun)?;
        while ended.is_none() {
            let (next, stopped) = next_or_stop(generation, stop).await?;
            match next {
                Next::Ended(why) => ended = Some(why),
                Next::Token(token) => {
                    let bytes = self.tokenizer.bytes(token as u32);
                    // The reader may be slow.
                    let said = stop.or(async { Ok(output.push(bytes).await?) }).await;
                    ended = ended_by_stop(said)?.or(stopped.then_some(Ended::Interrupted));
                    cropped = self.say_if_cropped(generation, cropped);
                }
            }
        }
        let ended = ended.unwrap_or(Ended::Interrupted);
        let (seconds, context) = (started.elapsed().as_secs_f64(), generation.context());
        let (all, tokens) = (context.tokens(), context.made());
        let prompt_tokens = &all[..all.len() - tokens.len()];
        let facts = Facts { sample: self.sample, prompt_tokens, tokens, seconds, ended };
        let finished = stop.or(async { Ok(output.finish(facts).await?) }).await;
        ended_by_stop(finished)?;
        let count = tokens.len();
        say(&format!("{count} tokens in {seconds:.1} s: {:.1} tokens/s", count as f64 / seconds.max(1e-9)));
        Ok(ended)
    }

    /// Says once why it becomes slow.
    fn say_if_cropped(self, generation: &Generation, said: bool) -> bool {
        if generation.context().is_cropped() && !said {
            say(&format!(
                "the text is longer than the model's {0} positions: from here on each token follows from the last {0}, which \
                 are computed anew",
                self.n_positions
            ));
            return true;
        }
        said
    }
}

/// The next token, and whether somebody asked to stop meanwhile: after a first signal the engine is let finish it, after a
/// second there is none.
async fn next_or_stop(generation: &mut Generation, stop: &mut Stop) -> Result<(Next, bool), Error> {
    let mut next = pin!(generation.next());
    tokio::select! {
        next = &mut next => return Ok((next?, false)),
        () = stop.asked() => (),
    }
    tokio::select! {
        next = next => Ok((next?, true)),
        () = stop.asked() => Ok((Next::Ended(Ended::Interrupted), true)),
    }
}

/// A stop while text is printed ends the text.
fn ended_by_stop(printed: Result<(), Error>) -> Result<Option<Ended>, Error> {
    match printed {
        Ok(()) => Ok(None),
        Err(Error::Stopped) => Ok(Some(Ended::Interrupted)),
        Err(error) => Err(error),
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
    async fn or<T>(&mut self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::select! {
            done = work => done,
            () = self.asked() => Err(Error::Stopped),
        }
    }
}

/// Goes to stderr; a closed stderr is nobody's loss.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
