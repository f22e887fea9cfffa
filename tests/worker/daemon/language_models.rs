//! A rank that trains a language model, alone: from its first step to its last, again, and from a checkpoint on.

use std::{collections::BTreeMap, fs, path::Path};

use ringtune_fake_engine::FakeScript;
use ringtune_proto::v1::{self, RankFault, RankPhase, session_request::Message as Up};
use ringtune_shared::{
    ids::{ContentHash, JobId},
    job::{JobSpec, parse_job_toml},
};
use ringtune_text::{FileFacts, MANIFEST_FILE, Manifest, TOKEN_TYPE, TRAIN_FILE, VAL_FILE};
use safetensors::SafeTensors;
use tempfile::TempDir;

use crate::{coordinator::Session, worker::Alone};

/// Ids that the model of these jobs knows.
const VOCABULARY: u16 = 23;
/// What a job of seven steps does in them.
const SEVEN_STEPS: &str = "max_iters = 7\nwarmup_iters = 2\nlearning_rate = 0.01\neval_interval = 4\neval_iters = 3\n\
                           checkpointing_steps = 2\ncompare_interval = 3\ndropout = 0.125\n";
/// The parameters of the fake engine's model.
const PARAMETERS: [&str; 2] = ["transformer.ln_f.bias", "transformer.wte.weight"];

/// What a job begins with: the shape of a model, and tokens.
pub struct Ground {
    folder: TempDir,
}

impl Ground {
    pub fn lay() -> Self {
        Self::of_tokens(400, 100)
    }

    /// With so many tokens to train on and to validate.
    pub fn of_tokens(train: u64, val: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (base, tokens) = (folder.path().join("base"), folder.path().join("tokens"));
        fs::create_dir(&base).unwrap();
        fs::create_dir(&tokens).unwrap();
        let ground = Self { folder };
        ground.write_config(VOCABULARY);
        let facts = [(TRAIN_FILE, train, 7), (VAL_FILE, val, 11)].map(|(name, count, factor)| {
            let ids = (0..count).map(|place| (place * place * factor % u64::from(VOCABULARY)) as u16);
            let bytes: Vec<u8> = ids.flat_map(u16::to_le_bytes).collect();
            fs::write(tokens.join(name), &bytes).unwrap();
            FileFacts { documents: 1, tokens: count, sha256: ContentHash::of(&bytes) }
        });
        let [train, val] = facts;
        let manifest = Manifest {
            ringtune_version: "test".to_owned(),
            token_type: TOKEN_TYPE.to_owned(),
            vocabulary_size: u32::from(VOCABULARY),
            end_of_text_id: 0,
            tokenizer_sha256: ContentHash::of(b"tokenizer"),
            seed: 1,
            val_fraction: 0.2,
            skipped_documents: 0,
            train,
            val,
        };
        fs::write(tokens.join(MANIFEST_FILE), manifest.to_json().unwrap()).unwrap();
        ground
    }

    /// Gives the base model another vocabulary.
    pub fn write_config(&self, vocabulary: u16) {
        let config = format!(
            "{{\"model_type\": \"gpt2\", \"vocab_size\": {vocabulary}, \"n_positions\": 16, \"n_layer\": 1, \"n_head\": 1, \
             \"n_embd\": 4}}"
        );
        fs::write(self.folder.path().join("base/config.json"), config).unwrap();
    }

    /// Gives the base model a tokenizer, of 557 tokens.
    pub fn add_tokenizer(&self) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/bpe-tokenizer");
        for name in ["vocab.json", "merges.txt"] {
            fs::copy(folder.join(name), self.folder.path().join("base").join(name)).unwrap();
        }
    }

    /// Changes a token behind the manifest's back.
    pub fn spoil_tokens(&self) {
        let file = self.folder.path().join("tokens").join(VAL_FILE);
        let mut bytes = fs::read(&file).unwrap();
        bytes[0] ^= 1;
        fs::write(&file, bytes).unwrap();
    }

    /// A job from scratch with these options, of a ring of so many.
    pub fn job(&self, options: &str, world_size: u32) -> JobSpec {
        let folder = self.folder.path().display();
        parse_job_toml(&format!(
            "kind = \"gpt2_finetune\"\nname = \"test\"\n[model]\nbase = \"{folder}/base\"\n\
             [gpt2]\ntokens = \"{folder}/tokens\"\ninit_from = \"scratch\"\nblock_size = 8\nbatch_size = 2\n\
             mixed_precision = \"no\"\nseed = 7\n{options}\
             [cluster]\nworld_size = {world_size}\nmin_world_size = 1\n"
        ))
        .unwrap()
    }
}

/// Runs a job to its end on one worker. Gives what it was run on, and the reports of its steps.
pub async fn run_alone(script: FakeScript, spec: &JobSpec) -> (Alone, JobId, Vec<v1::StepReport>) {
    let mut alone = Alone::start(script).await;
    let (id, steps) = run_another(&mut alone, spec).await;
    (alone, id, steps)
}

/// Runs a job to its end on a worker that has no other, and lets it go.
pub async fn run_another(alone: &mut Alone, spec: &JobSpec) -> (JobId, Vec<v1::StepReport>) {
    let id = JobId::new();
    alone.session.assign_alone(id, spec).await;
    alone.session.start_when_ready(id).await;
    let (_, steps) = alone.session.until(RankPhase::Finished).await;
    alone.session.let_go(id).await;
    (id, steps)
}

/// The bytes of each tensor of a file.
fn tensors(file: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let tensors = SafeTensors::deserialize(file).unwrap().tensors();
    tensors.into_iter().map(|(name, view)| (name, view.data().to_vec())).collect()
}

/// Those of whose names `prefix` is the beginning, by what follows.
fn part(tensors: &BTreeMap<String, Vec<u8>>, prefix: &str) -> BTreeMap<String, Vec<u8>> {
    tensors
        .iter()
        .filter_map(|(name, bytes)| Some((name.strip_prefix(prefix)?.to_owned(), bytes.clone())))
        .collect()
}

/// The tensors of a checkpoint that a job kept.
fn checkpoint(alone: &Alone, id: JobId, step: u64) -> BTreeMap<String, Vec<u8>> {
    let name = format!("checkpoint-{step}.safetensors");
    tensors(&alone.coordinator.kept(id, &name).unwrap_or_else(|| panic!("{name} is missing")))
}

/// The steps that have the hash of their state, and those with a validation loss.
fn looked_at(steps: &[v1::StepReport]) -> (Vec<i64>, Vec<i64>) {
    let numbers = |has: fn(&v1::StepReport) -> bool| {
        steps.iter().filter(|step| has(step)).map(|step| step.step).collect()
    };
    (numbers(|step| !step.state_sha256.is_empty()), numbers(|step| step.validation_loss.is_some()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_language_model_is_trained_validated_and_kept() {
    let ground = Ground::lay();
    let (alone, id, steps) = run_alone(FakeScript::default(), &ground.job(SEVEN_STEPS, 1)).await;
    // 1. Each step once, in order; the rates are what nanoGPT's get_lr gives in Python.
    assert_eq!(steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    let rates = [
        0.003_333_333_333_333_333_5,
        0.006_666_666_666_666_667,
        0.01,
        0.009_140_576_474_687_266,
        0.006_890_576_474_687_264,
        0.004_109_423_525_312_737,
        0.001_859_423_525_312_737_1,
    ];
    for (step, rate) in steps.iter().zip(rates) {
        assert!((step.learning_rate - rate).abs() < 1e-12, "{step:?}");
        assert!(step.loss.is_finite() && !step.skipped && step.world_size == 1, "{step:?}");
    }
    assert!(steps[6].loss < steps[0].loss, "nothing was learned: {steps:?}");
    assert_eq!(looked_at(&steps), (vec![3, 6, 7], vec![4, 7]));
    assert!(steps.iter().all(|step| [0, 64].contains(&step.state_sha256.len())));
    // 2. Its files.
    assert_eq!(
        alone.coordinator.kept_names(id),
        [
            "README.md",
            "checkpoint-2.safetensors",
            "checkpoint-4.safetensors",
            "checkpoint-6.safetensors",
            "config.json",
            "events.out.tfevents.ringtune",
            "job.log",
            "job.toml",
            "metrics.csv",
            "model-last.safetensors",
            "model.safetensors"
        ]
    );
    // The last step is the best one: both names are its model's.
    let [best, last] =
        ["model.safetensors", "model-last.safetensors"].map(|name| alone.coordinator.kept(id, name).unwrap());
    assert!(best == last);
    let model = tensors(&alone.coordinator.kept(id, "model.safetensors").unwrap());
    assert!(PARAMETERS.iter().all(|name| model.contains_key(*name)), "{:?}", model.keys());
    let config = alone.coordinator.kept(id, "config.json").unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    assert_eq!((&config["vocab_size"], &config["n_positions"]), (&23.into(), &8.into()));
    let metrics = String::from_utf8(alone.coordinator.kept(id, "metrics.csv").unwrap()).unwrap();
    assert_eq!(metrics.lines().count(), 8);
    // 3. Checkpoints: the best parameters are there from the step after the first validation on.
    let of_state = |kinds: &[&str]| -> Vec<String> {
        kinds.iter().flat_map(|kind| PARAMETERS.map(|name| format!("{kind}.{name}"))).collect()
    };
    let without = of_state(&["adamw.mean", "adamw.square", "model"]);
    for step in [2, 4] {
        let kept: Vec<String> = checkpoint(&alone, id, step).into_keys().collect();
        assert!(without.iter().all(|name| kept.contains(name)), "{kept:?}");
        assert!(!kept.iter().any(|name| name.starts_with("best.")), "{kept:?}");
    }
    let (fourth, sixth) = (checkpoint(&alone, id, 4), checkpoint(&alone, id, 6));
    assert_eq!(part(&sixth, "best."), part(&fourth, "model."), "the best ones are those of step 4");
    assert_ne!(part(&sixth, "model."), part(&fourth, "model."));
    alone.worker.end().await.unwrap();
}

/// A rate that is far too high after step 2 makes the model worse from there on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_language_model_that_gets_worse_is_stopped_and_its_best_state_is_the_result() {
    let ground = Ground::lay();
    let options = "max_iters = 20\ndecay_lr = true\nwarmup_iters = 18\nlearning_rate = 50.0\neval_interval = 1\n\
                   eval_iters = 3\ncheckpointing_steps = 1\nearly_stop_patience = 3\n";
    let (alone, id, steps) = run_alone(FakeScript::default(), &ground.job(options, 1)).await;
    let losses: Vec<f64> = steps.iter().map(|step| step.validation_loss.unwrap()).collect();
    let best = (0..losses.len()).min_by(|one, other| losses[*one].total_cmp(&losses[*other])).unwrap();
    assert_eq!(losses.len(), best + 4, "three validations without a lower loss: {losses:?}");
    // Both models are those of the checkpoints after these steps.
    for (name, step) in [("model.safetensors", best + 1), ("model-last.safetensors", losses.len())] {
        let model = tensors(&alone.coordinator.kept(id, name).unwrap());
        let kept = part(&checkpoint(&alone, id, step as u64), "model.");
        assert!(kept.iter().all(|(parameter, bytes)| model[parameter] == *bytes), "{name}");
    }
    let log = String::from_utf8(alone.coordinator.kept(id, "job.log").unwrap()).unwrap();
    assert!(log.contains(&format!("after step {}: no lower validation loss", losses.len())), "{log}");
    alone.worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_a_language_model_that_are_not_finite_move_nothing() {
    let ground = Ground::lay();
    let options = "max_iters = 8\nlearning_rate = 0.01\ndecay_lr = false\neval_interval = 0\n\
                   checkpointing_steps = 1\ncompare_interval = 1\n";
    let script = FakeScript { not_finite: Some((4, 5)), ..FakeScript::default() };
    let (alone, id, steps) = run_alone(script, &ground.job(options, 1)).await;
    let skipped: Vec<i64> = steps.iter().filter(|step| step.skipped).map(|step| step.step).collect();
    assert_eq!((skipped.as_slice(), steps.len()), (&[4, 5][..], 8));
    // Parameters and moments stay; the counters do not, and belong to the state.
    let kept: Vec<_> = (3..=6).map(|step| checkpoint(&alone, id, step)).collect();
    for kind in ["model.", "adamw."] {
        let [third, fourth, fifth, sixth] = [0, 1, 2, 3].map(|number| part(&kept[number], kind));
        assert!(!third.is_empty() && third == fourth && fourth == fifth, "{kind}");
        assert_ne!(fifth, sixth, "{kind}");
    }
    assert_ne!(steps[3].state_sha256, steps[4].state_sha256);
    alone.worker.end().await.unwrap();
}

/// Runs a job that must fail, and lets it go. Gives the report of that, and how many steps were told before.
pub async fn failure(alone: &mut Alone, spec: &JobSpec) -> (JobId, v1::RankReport, usize) {
    let id = JobId::new();
    alone.session.assign_alone(id, spec).await;
    let (report, steps) = until_failed(&mut alone.session, id).await;
    alone.session.let_go(id).await;
    (id, report, steps)
}

/// Reads on until a rank fails, which it has to; starts it when it is ready, if it gets so far. Gives its report, and how many steps were told before.
pub async fn until_failed(session: &mut Session, job: JobId) -> (v1::RankReport, usize) {
    let mut steps = 0;
    loop {
        match session.next().await.expect("the session ended") {
            Up::RankReport(report) if report.phase() == RankPhase::Ready => session.start(job).await,
            Up::RankReport(report) if report.phase() == RankPhase::Failed => return (report, steps),
            Up::RankReport(report) => assert_ne!(report.phase(), RankPhase::Finished),
            Up::RankStep(_) => steps += 1,
            _ => (),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_steps_of_a_language_model_that_are_not_finite_end_its_job() {
    let ground = Ground::lay();
    let script = FakeScript { not_finite: Some((3, 12)), ..FakeScript::default() };
    let mut alone = Alone::start(script).await;
    let spec = ground.job("max_iters = 30\nlearning_rate = 0.01\neval_interval = 0\n", 1);
    let (id, report, steps) = failure(&mut alone, &spec).await;
    assert_eq!((report.fault(), steps), (RankFault::Job, 11), "{}", report.reason);
    let tensors =
        "2 gradients were not, on the way back first those of transformer.wte.weight, transformer.ln_f.bias)";
    for part in ["step 12", "not finite 10 times in a row", tensors, "learning_rate", "mixed_precision"] {
        assert!(report.reason.contains(part), "{part:?} is missing of {:?}", report.reason);
    }
    // What was learned before is not lost, and the worker takes other jobs.
    assert!(alone.coordinator.kept(id, "model.safetensors").is_some());
    run_another(&mut alone, &ground.job(SEVEN_STEPS, 1)).await;
    alone.worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_language_model_goes_on_from_a_checkpoint_to_the_same_bytes() {
    let ground = Ground::lay();
    let (mut alone, id, whole) = run_alone(FakeScript::default(), &ground.job(SEVEN_STEPS, 1)).await;
    let model = alone.coordinator.kept(id, "model.safetensors").unwrap();
    // Before the first validation, after a step that was validated, and with the best parameters.
    for step in [2, 4, 6] {
        let kept = alone.coordinator.kept(id, &format!("checkpoint-{step}.safetensors")).unwrap();
        let from = format!("resume_from_checkpoint = \"{}\"\n", ContentHash::of(&kept).uri());
        let (again, steps) = run_another(&mut alone, &ground.job(&(SEVEN_STEPS.to_owned() + &from), 1)).await;
        let bits = |steps: &[v1::StepReport]| -> Vec<_> {
            let bits = |step: &v1::StepReport| {
                (
                    step.step,
                    step.loss.to_bits(),
                    step.validation_loss.map(f64::to_bits),
                    step.state_sha256.clone(),
                )
            };
            steps.iter().map(bits).collect()
        };
        assert_eq!(bits(&steps), bits(&whole[step..]), "from step {step}");
        assert!(alone.coordinator.kept(again, "model.safetensors").unwrap() == model, "from step {step}");
    }
    alone.worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_of_a_language_model_are_computed_again_and_nothing_is_uploaded() {
    let ground = Ground::lay();
    let spec = ground.job(SEVEN_STEPS, 1);
    let (mut alone, _, first) = run_alone(FakeScript::default(), &spec).await;
    // As many steps as the job was done in, which may be fewer than it asked for.
    for last in [7, 6] {
        let id = JobId::new();
        alone.session.assign_proof(id, &spec, last).await;
        alone.session.start_when_ready(id).await;
        let (_, again) = alone.session.until(RankPhase::Finished).await;
        let said = |steps: &[v1::StepReport]| -> Vec<(i64, String)> {
            steps.iter().map(|step| (step.step, step.state_sha256.clone())).collect()
        };
        assert_eq!(said(&again), said(&first[..last as usize]));
        assert!(alone.coordinator.kept_names(id).is_empty(), "{:?}", alone.coordinator.kept_names(id));
        alone.session.let_go(id).await;
    }
    alone.worker.end().await.unwrap();
}
