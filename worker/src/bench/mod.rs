//! `bench`: what the training step takes on this machine, and where its time goes.
//!
//! The steps are those of a worker: the engine that the daemon starts computes them on its thread. Beside each stands what library
//! and machine can do at that moment, because a shared machine is now fast and now slow.
//!
//! Measurements of step, library and machine are taken in turns. With `--profile` libtorch calls back at each operator
//! (`csrc/profile.cpp` of the model crate); our kernels announce themselves with `RINGTUNE_RECORD`, and `class.rs` says
//! what each is. `make bench` and `make bench-lora` run the step beside diffusers' own, in turns, `make bench-draw` a picture, `make
//! bench-gpt2` a GPT-2's step; `make bench-first` times a job from its submission to its first step.
//!
//! Invariant: a new kernel announces itself, forward and backward, with the tensors that say how much there is to do; a
//! test of the worker's daemon knows all their names.

mod account;
mod arguments;
mod class;
mod error;
mod made_up;
mod report;
mod summary;
mod trace;
mod trained;
mod unet;
mod usage;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use serde_json::json;

pub use account::{Account, Tally};
pub use arguments::{BenchCommand, BenchOutput, StepArguments, UnetArguments, UnetTableArguments};
pub use class::Class;
pub use error::Error;
pub use unet::unet;

use crate::{
    capabilities::default_threads,
    engine::{
        EngineError, EngineHandle, Library, LoadModel, MachineRates, Meter, Microbatch, ModelInfo,
        ModelOptions, Precision, Recording, StartEngine, Threads,
    },
    node::{Claim, Node, Wish},
    settings::ComputeSettings,
};
use made_up::Inputs;
use summary::{Measured, Step, Summary};
use trace::Trace;
use trained::TrainedSteps;
use usage::{Counts, PeakMemory};

/// A trace of more steps is too large to look at.
const MOST_RECORDED_STEPS: u32 = 20;
/// The row of the token table that learned rows begin as.
const FIRST_ROW: i64 = 320;

impl StepArguments {
    /// Of a UNet that is trained whole, the weights are drawn.
    fn model_options(&self) -> ModelOptions {
        ModelOptions { draws_unet: self.unet, ..ModelOptions::default() }
    }
}

/// Measures steps, and prints what it found.
///
/// # Errors
/// See [`Error`]. What is wrong with the arguments is said before the model is loaded.
pub async fn step(arguments: &StepArguments, library: Library) -> Result<(), Error> {
    // 1. What can be refused without the model's weights.
    let plan = check(arguments, &Node::detect())?;
    let (checkpoint, options) = (arguments.checkpoint.clone(), arguments.model_options());
    let info =
        blocking(move || (library.check_folder)(&checkpoint, &options)).await?.map_err(Error::Model)?;
    let side = check_resolution(arguments.resolution, &info)?;
    // 2. Engine and model.
    let memory = PeakMemory::start();
    let bench = Bench::open(arguments, &plan, library, memory).await?;
    for number in 1..=arguments.encode {
        let started = Instant::now();
        bench.engine.encode_image(made_up::picture(arguments.resolution as usize)).await?;
        let seconds = started.elapsed().as_secs_f64();
        let words = format!("picture {number} encoded in {seconds:.3} s");
        bench.say(&json!({"picture": number, "encode_seconds": seconds}), &words)?;
    }
    bench.engine.drop_vae().await?;
    // 3. The steps.
    let inputs = Inputs::new(&info, arguments.batch as usize, side);
    let mut trained = match (arguments.lora, arguments.unet) {
        (Some(rank), _) => Some(TrainedSteps::adapters(&bench.engine, rank as usize).await?),
        (None, true) => Some(TrainedSteps::unet(&bench.engine, &arguments.checkpoint, &arguments.how).await?),
        (None, false) => None,
    };
    let (measured, recordings) = bench.steps(&inputs, trained.as_mut()).await?;
    // 4. What they say.
    if let Some(file) = plan.trace {
        tokio::task::spawn_blocking(move || write_trace(&file, &recordings)).await??;
    }
    let summary = Summary::of(&measured);
    let text = match arguments.output {
        BenchOutput::Json => serde_json::to_string(&summary).map_err(std::io::Error::from)?,
        BenchOutput::Text => report::text(&summary),
    };
    Ok(writeln!(std::io::stdout(), "{text}")?)
}

/// The plan of a measurement, from arguments and machine.
#[derive(Debug)]
struct Plan {
    precision: Precision,
    /// On cores of their own, as a worker's are; nobody else's while this lives.
    claim: Claim,
    threads: usize,
    trace: Option<PathBuf>,
}

fn check(arguments: &StepArguments, node: &Node) -> Result<Plan, Error> {
    let bf16 = node.cpu.has_bf16();
    let precision = match arguments.precision {
        Some(Precision::Bf16) if !bf16 => {
            let problem =
                "is bf16, for which this processor has no instructions (avx512_bf16 or amx_bf16): give fp32";
            return Err(Error::Option { option: "--precision", problem: problem.to_owned() });
        }
        Some(precision) => precision,
        None if bf16 => Precision::Bf16,
        None => Precision::Fp32,
    };
    let threads = arguments.threads.map_or(0, |threads| threads as usize);
    let compute = ComputeSettings { threads, ..ComputeSettings::default() };
    if let Some(file) = &arguments.profile {
        if arguments.steps > MOST_RECORDED_STEPS {
            let problem =
                format!("is {} with --profile, allowed is 1 to {MOST_RECORDED_STEPS}", arguments.steps);
            return Err(Error::Option { option: "--steps", problem });
        }
        check_writable(file)?;
    }
    let threads = default_threads(node, &compute);
    let portion = node.cores.portion(compute.share());
    let claim = Claim::take(Wish { portion: &portion, threads, quota: node.quota });
    Ok(Plan { precision, claim, threads, trace: arguments.profile.clone() })
}

/// The side of the latents.
fn check_resolution(resolution: u32, info: &ModelInfo) -> Result<usize, Error> {
    let (resolution, factor) = (resolution as usize, info.vae_factor);
    if resolution.is_multiple_of(factor) {
        return Ok(resolution / factor);
    }
    let problem =
        format!("is {resolution}, allowed is a multiple of {factor}, the factor of the model's VAE");
    Err(Error::Option { option: "--resolution", problem })
}

/// A file can be made there, beside whatever is there now.
fn check_writable(file: &Path) -> Result<(), Error> {
    let failed = |source| Error::Trace { file: file.to_owned(), source };
    if file.is_dir() {
        return Err(failed(std::io::Error::from(std::io::ErrorKind::IsADirectory)));
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new().prefix(".trace-").tempfile_in(folder).map(drop).map_err(failed)
}

fn write_trace(file: &Path, recordings: &[Recording]) -> Result<(), Error> {
    let failed = |source| Error::Trace { file: file.to_owned(), source };
    let trace = serde_json::to_vec(&Trace::of(recordings, std::process::id()))
        .map_err(|error| failed(error.into()))?;
    ringtune_shared::files::write_atomically(file, &trace)
        .map_err(|error| failed(std::io::Error::other(error)))
}

/// An engine with a model, and what is measured on it.
struct Bench<'a> {
    arguments: &'a StepArguments,
    precision: Precision,
    engine: EngineHandle,
    meter: Meter,
    memory: PeakMemory,
}

impl<'a> Bench<'a> {
    async fn open(
        arguments: &'a StepArguments,
        plan: &Plan,
        library: Library,
        memory: PeakMemory,
    ) -> Result<Self, Error> {
        let (precision, threads) = (plan.precision, plan.threads);
        let placed = Threads { count: threads, processors: plan.claim.place().processors() };
        let engine = start(library.start, placed).await?;
        let identity = engine.identity().await?;
        let started = Instant::now();
        let folder = arguments.checkpoint.clone();
        let options = arguments.model_options();
        engine.load(LoadModel { folder, options, precision, threads, training: None }).await?;
        let bench = Self { arguments, precision, engine, meter: library.meter, memory };
        // The last part names what multiplies.
        let instructions = identity.instruction_set.rsplit('+').next().unwrap_or_default();
        let seconds = started.elapsed().as_secs_f64();
        let words = format!("{precision} by {instructions}, {threads} threads; opened in {seconds:.3} s");
        let facts = json!({
            "open_seconds": seconds, "threads": threads, "precision": precision.name(),
            "matrix_instructions": instructions, "instruction_set": identity.instruction_set,
            "library_version": identity.library_version, "kernels_revision": identity.kernels_revision,
        });
        bench.say(&facts, &words)?;
        Ok(bench)
    }

    /// Runs all steps, with the machine's rates between them, and recordings of the timed ones.
    async fn steps(
        &self,
        inputs: &Inputs,
        mut trained: Option<&mut TrainedSteps>,
    ) -> Result<(Measured, Vec<Recording>), Error> {
        let (mut measured, mut recordings) = (Measured::default(), Vec::new());
        let arguments = self.arguments;
        let row = self.engine.token_row(FIRST_ROW.min(inputs.last_word())).await?;
        let several = arguments.concepts as usize;
        let mut variants = vec![(1, Arc::new(row.clone()))];
        if several > 1 {
            variants.push((several, Arc::new(row.repeat(several))));
        }
        let warm_up = arguments.warm_up as usize;
        for number in 1..=warm_up + arguments.steps as usize {
            let is_warm_up = number <= warm_up;
            for (concepts, rows) in &variants {
                // The first counts the work.
                let counts = number == 1 && *concepts == 1;
                let record = counts || (!is_warm_up && arguments.profile.is_some());
                let microbatch = match &trained {
                    Some(_) => inputs.of_known_words(number),
                    None => inputs.microbatch(number, *concepts, rows),
                };
                let (mut step, recording) =
                    self.one(microbatch, (number, *concepts), trained.as_deref_mut(), record).await?;
                step.warm_up = is_warm_up;
                self.say_step(&step)?;
                measured.steps.push(step);
                let Some(recording) = recording else { continue };
                let account = Account::of(&recording);
                if counts {
                    measured.flop = account.work_of_a_step();
                }
                if !is_warm_up {
                    measured.account.get_or_insert_default().add(account);
                    recordings.push(recording);
                }
            }
            if !is_warm_up {
                measured.rates.push(self.machine_rates().await?);
            }
        }
        measured.peak_private_bytes = self.memory.bytes();
        Ok((measured, recordings))
    }

    /// Runs a step, recorded or not.
    async fn one(
        &self,
        microbatch: Microbatch,
        (number, concepts): (usize, usize),
        trained: Option<&mut TrainedSteps>,
        record: bool,
    ) -> Result<(Step, Option<Recording>), Error> {
        let meter = self.meter;
        if record {
            self.engine.run(move |_, _| (meter.start_recording)()).await?;
        }
        let (before, started) = (Counts::now(), Instant::now());
        let gradient = match trained {
            Some(trained) => trained.step(&self.engine, microbatch).await,
            None => self.engine.gradient(microbatch).await.map_err(Error::from),
        };
        let (step_seconds, counts) = (started.elapsed().as_secs_f64(), Counts::now().since(before));
        let recording = match record {
            true => Some(self.engine.run(move |_, _| (meter.stop_recording)()).await?),
            false => None,
        };
        let gradient = gradient?;
        let step = Step {
            step: number,
            warm_up: false,
            concepts,
            forward_seconds: gradient.forward_seconds,
            backward_seconds: gradient.backward_seconds,
            step_seconds,
            loss: gradient.loss,
            page_faults: counts.page_faults,
            involuntary_switches: counts.involuntary_switches,
        };
        Ok((step, recording))
    }

    async fn machine_rates(&self) -> Result<MachineRates, Error> {
        let (meter, precision) = (self.meter, self.precision);
        self.memory.pause();
        let rates = self.engine.run(move |_, _| (meter.machine_rates)(precision)).await;
        self.memory.go_on();
        Ok(rates?)
    }

    fn say_step(&self, step: &Step) -> Result<(), Error> {
        match self.arguments.output {
            BenchOutput::Json => {
                let line = serde_json::to_string(step).map_err(std::io::Error::from)?;
                Ok(writeln!(std::io::stdout(), "{line}")?)
            }
            BenchOutput::Text => {
                progress(&report::step_line(step));
                Ok(())
            }
        }
    }

    /// A fact beside the steps: an object for a program, words for people.
    fn say(&self, facts: &serde_json::Value, words: &str) -> Result<(), Error> {
        match self.arguments.output {
            BenchOutput::Json => Ok(writeln!(std::io::stdout(), "{facts}")?),
            BenchOutput::Text => {
                progress(words);
                Ok(())
            }
        }
    }
}

async fn start(start: StartEngine, threads: Threads) -> Result<EngineHandle, Error> {
    Ok(blocking(move || start(threads)).await??)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<Result<T, EngineError>, Error> {
    Ok(tokio::task::spawn_blocking(work).await?)
}

/// Progress goes to stderr; a closed stderr is nobody's loss.
fn progress(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests;
