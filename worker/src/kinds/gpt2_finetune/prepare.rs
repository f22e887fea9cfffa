//! All that a rank does alone before it is ready.

use std::{path::Path, sync::Arc};

use ringtune_shared::job::kinds::gpt2_finetune::{Gpt2Init, Gpt2Spec, OPTIONS_WITHOUT_EFFECT};
use serde_json::{Value, json};

use super::{
    ahead::Ahead,
    batches::{BatchSize, Batches, Chance},
    model::{Gpt2Model, options},
    results::Results,
    shape::{self, Shape},
    tokenizer,
    tokens::{self, Tokens},
};
use crate::{
    engine::{
        BucketSizes, LanguageModelFolder, LanguageModelSource, NewLanguageModel, OpenLanguageModel, Precision,
    },
    fault::Refusal,
    node,
    output::language_model,
    parameters::{ParameterTrainee, Prepared, memory},
    rank::{Error, Rank},
    training::{self, Course, Named, Origin, Start, deciding_job},
};

/// What it learns from.
const TOKENS: Named = Named { what: "files of tokens (gpt2.tokens)", key: tokens::FIELD };

/// Prepares a rank. Every failure names the job's field or the file.
pub(super) async fn prepare(rank: &Rank, job: Gpt2Spec) -> Result<ParameterTrainee<Gpt2Model>, Error> {
    let Rank { assignment, context, journal, .. } = rank;
    // 1. Where it goes on, so that a wrong file is told before anything long is begun; and the tokens.
    let checkpoint = training::fetch(rank).await?;
    let tokens = tokens::bring(rank, &job).await?;
    // 2. The model.
    let model = rank.bring_language_model(job.init_from == Gpt2Init::Pretrained).await?;
    if let Some(warning) = tokenizer::compare(&model, &tokens.files.manifest).await? {
        journal.warn(warning).await;
    }
    let ranks = u32::try_from(assignment.ring.members.len()).unwrap_or(u32::MAX);
    let (source, base_config) = source(&job, &model.folder, assignment.precision, ranks).await?;
    let opening = OpenLanguageModel {
        source,
        precision: assignment.precision,
        threads: assignment.threads,
        buckets: BucketSizes::default(),
    };
    let info = context.engine.open_language_model(opening).await.map_err(Error::of_engine)?;
    let parameters: usize = info.parameters.list.iter().map(|parameter| parameter.elements()).sum();
    journal.info(format!("model: GPT-2, {parameters} parameters, {}", model.hash)).await;
    let Tokens { files, hash: data_hash, held } = tokens;
    let (vocabulary, block) = (u32::try_from(info.vocab_size).unwrap_or(u32::MAX), job.block_size);
    // 3. What microbatches are made of.
    let size = BatchSize { batch: job.batch_size, block };
    let chance = Chance { seed: job.seed, dropout: job.dropout };
    let validates = job.eval_interval > 0;
    let check = move || {
        files.train.check_ids(vocabulary)?;
        files.val.check_ids(vocabulary)?;
        Batches::new(files, chance, size, validates)
    };
    let batches = ringtune_shared::tasks::spawn_blocking(check).await?.map_err(tokens::unusable)?;
    // 4. Where it begins or goes on.
    let Start { done, state, origin } = Start::of(checkpoint, model.hash, TOKENS, data_hash, assignment)?;
    let results = Results {
        config: config_with_tokens(info.config, &base_config),
        tokenizer: model.folder.clone(),
        copied: copied(&model.files),
        facts: facts(rank, &job, &origin)?,
        select_best: job.select_best,
    };
    let options = options(&job);
    let course = Course::new(assignment, done, job.checkpointing_steps, job.report_to);
    let ahead = Ahead::new(batches.clone(), job.max_iters);
    let prepared = Prepared {
        model: Gpt2Model { job, orders: rank.assignment.spec.common.orders.clone(), batches, ahead, results },
        parameters: info.parameters,
        options,
        course,
        origin,
        state,
        held: held.into_iter().map(Arc::new).chain([model.local]).collect(),
    };
    prepared.into_trainee(rank).await
}

/// What a job's model takes over from the base model: its tokenizer, and how it generates.
fn copied(files: &[String]) -> Vec<String> {
    let is_own = |name: &String| name == language_model::CONFIG_NAME || name.contains(".safetensors");
    files.iter().filter(|name| !is_own(name)).cloned().collect()
}

/// Where the parameters come from, once it is known that this machine has room for them; and the config that a new model's is
/// made of.
pub(super) async fn source(
    job: &Gpt2Spec,
    folder: &Path,
    precision: Precision,
    ranks: u32,
) -> Result<(LanguageModelSource, Value), Error> {
    let path = folder.join("config.json");
    let read = move || (read_config(&path), node::memory_of_process());
    let (read, memory) = ringtune_shared::tasks::spawn_blocking(read).await?;
    let training = memory::Training {
        ranks,
        shared_moments: job.shard_optimizer,
        copies: if precision == Precision::Bf16 { 2 } else { 0 },
        ..memory::Training::LEAST
    };
    if job.init_from == Gpt2Init::Pretrained {
        // What is wrong with the file says the engine, which reads all of it.
        if let Some(config) = read.ok().filter(is_gpt2) {
            check_block(job, &config)?;
            shape::check(Shape::of_config(&config, job.block_size), job, training, memory)?;
        }
        let positions = Some(job.block_size as usize);
        let folder = LanguageModelFolder { path: folder.to_owned(), positions };
        return Ok((LanguageModelSource::Folder(folder), Value::Null));
    }
    let config = read.map_err(|problem| Refusal::of("model.base", format!("config.json: {problem}")))?;
    let new = new_model(job, &config)?;
    shape::check(Shape::of_new(&new), job, training, memory)?;
    Ok((LanguageModelSource::New(new), config))
}

/// A config.json without the word is taken for one too.
fn is_gpt2(config: &Value) -> bool {
    config.get("model_type").is_none_or(|kind| kind == "gpt2")
}

/// The config of a job's model, with the tokens that the base model's begins and ends texts with: the engine knows of none.
fn config_with_tokens(config: String, base: &Value) -> String {
    let Ok(Value::Object(mut options)) = serde_json::from_str(&config) else { return config };
    for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        if let Some(id) = base.get(key).filter(|_| !options.contains_key(key)) {
            options.insert(key.to_owned(), id.clone());
        }
    }
    // Of what was just read nothing can fail to be written.
    serde_json::to_string_pretty(&options).map_or(config, |text| text + "\n")
}

/// Positions of a model whose config.json does not say: transformers' default of GPT2Config.
const POSITIONS: u64 = 1024;
/// Bytes of a config.json at most.
const LARGEST_CONFIG: u64 = 1 << 20;

/// Blocks.
fn read_config(path: &Path) -> Result<Value, String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > LARGEST_CONFIG {
        return Err(format!("it has {size} bytes; allowed: {LARGEST_CONFIG}"));
    }
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

/// A model that is not trained yet: of the base model's shape, where the job gives no other. As long as its windows, as
/// nanoGPT makes it.
fn new_model(job: &Gpt2Spec, config: &Value) -> Result<NewLanguageModel, Refusal> {
    let side = |given: u32, key: &str| match given {
        0 => config.get(key).and_then(Value::as_u64).and_then(|side| usize::try_from(side).ok()).ok_or_else(
            || Refusal::of("model.base", format!("config.json has no number {key:?}: it is no GPT-2's")),
        ),
        given => Ok(given as usize),
    };
    let (n_layer, n_head, n_embd) =
        (side(job.n_layer, "n_layer")?, side(job.n_head, "n_head")?, side(job.n_embd, "n_embd")?);
    if n_head == 0 || !n_embd.is_multiple_of(n_head) {
        let problem = format!("{n_embd} with {n_head} heads; allowed: a multiple of the number of heads");
        return Err(Refusal::of("gpt2.n_embd", problem));
    }
    Ok(NewLanguageModel {
        vocab_size: side(0, "vocab_size")?,
        n_positions: job.block_size as usize,
        n_layer,
        n_head,
        n_embd,
        bias: job.bias,
        seed: job.seed,
    })
}

/// `config`: that of a model that is there, which becomes one of so many positions.
fn check_block(job: &Gpt2Spec, config: &Value) -> Result<(), Refusal> {
    let positions = config.get("n_positions").and_then(Value::as_u64).unwrap_or(POSITIONS);
    if u64::from(job.block_size) <= positions {
        return Ok(());
    }
    let problem = format!(
        "{}; allowed: 1 to {positions}, the longest text of model.base (n_positions)",
        job.block_size
    );
    Err(Refusal::of("gpt2.block_size", problem))
}

/// Everything that decides the learned bits and nothing that does not: where model and tokens lie is replaced by what they
/// are.
fn facts(rank: &Rank, options: &Gpt2Spec, origin: &Origin) -> Result<Value, Error> {
    let mut job = deciding_job(&rank.assignment, &["model", "debug"], "gpt2", &OPTIONS_WITHOUT_EFFECT)?;
    if let Some(Value::Object(options)) = job.get_mut("gpt2") {
        // Where they lie: `data_hash` says what they are.
        options.remove("tokens");
    }
    let mut facts = json!({
        "data_hash": origin.data_hash.to_string(),
        "job": job,
        "model_hash": origin.model_hash.to_string(),
        "numerics_class": origin.provenance,
        "version": rank.assignment.version,
    });
    if let (true, Value::Object(facts)) = (rank.assignment.spec.ring_decides(), &mut facts) {
        facts.insert("sums".to_owned(), Value::from(format!("{}: {DEPEND_ON_THE_RING}", options.exchange)));
    }
    Ok(facts)
}

/// What a model says of itself whose bits follow from more than the job.
const DEPEND_ON_THE_RING: &str =
    "the bits also follow from the number of ranks that took each step; the job's events have it";

#[cfg(test)]
mod tests {
    use super::{super::schedule::tests, *};
    use crate::fault::Fault;

    fn job(options: &str) -> Gpt2Spec {
        tests::job(&format!("init_from = \"scratch\"\nblock_size = 64\n{options}"))
    }

    #[tokio::test]
    async fn a_model_that_is_there_is_opened_with_as_many_positions_as_its_windows_have() {
        let folder = tempfile::tempdir().unwrap();
        let write = |config: &str| std::fs::write(folder.path().join("config.json"), config).unwrap();
        let pretrained = Gpt2Spec { init_from: Gpt2Init::Pretrained, ..job("") };
        let source = || source(&pretrained, folder.path(), Precision::Fp32, 1);
        let opened = LanguageModelFolder { path: folder.path().to_owned(), positions: Some(64) };
        for config in ["{\"n_positions\": 64}", "{}", "{\"model_type\": \"gpt2\", \"n_positions\": 65}"] {
            write(config);
            assert_eq!(source().await.unwrap().0, LanguageModelSource::Folder(opened.clone()));
        }
        write("{\"n_positions\": 63}");
        let refused = source().await.unwrap_err().to_string();
        assert!(refused.starts_with("gpt2.block_size: 64; allowed: 1 to 63"), "{refused}");
        write("{\"n_embd\": 60000, \"n_layer\": 900}");
        let refused = source().await.unwrap_err();
        assert_eq!(refused.fault(), Fault::Machine);
        assert!(refused.to_string().starts_with("model.base: the model has "), "{refused}");
        // What is no GPT-2 the engine refuses.
        write("{\"model_type\": \"llama\", \"n_positions\": 2}");
        assert!(source().await.is_ok());
    }

    #[tokio::test]
    async fn a_new_model_that_has_no_room_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let config = "{\"vocab_size\": 99, \"n_layer\": 3, \"n_head\": 2, \"n_embd\": 8}";
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let source = async |options: &str| source(&job(options), folder.path(), Precision::Fp32, 1).await;
        assert!(source("").await.is_ok());
        let refused = source("n_embd = 65536\nn_layer = 1000\n").await.unwrap_err();
        assert_eq!(refused.fault(), Fault::Machine);
        assert!(refused.to_string().starts_with("gpt2.n_embd: the model has "), "{refused}");
    }

    #[test]
    fn a_new_model_has_the_base_models_shape_but_for_what_the_job_gives() {
        let config = json!({"vocab_size": 99, "n_positions": 1024, "n_layer": 3, "n_head": 2, "n_embd": 8});
        let made = new_model(&job("n_layer = 1\nbias = false\nseed = 5\n"), &config).unwrap();
        let expected = NewLanguageModel {
            vocab_size: 99,
            n_positions: 64,
            n_layer: 1,
            n_head: 2,
            n_embd: 8,
            bias: false,
            seed: 5,
        };
        assert_eq!(made, expected);
        let base = json!({"eos_token_id": 98, "n_layer": 3, "bos_token_id": null});
        let made: Value =
            serde_json::from_str(&config_with_tokens("{\"n_layer\": 1}".to_owned(), &base)).unwrap();
        assert_eq!(made, json!({"n_layer": 1, "eos_token_id": 98, "bos_token_id": null}));
        let refused = new_model(&job("n_head = 3\n"), &config).unwrap_err();
        assert_eq!(
            (refused.field.as_str(), refused.problem.contains("8 with 3 heads")),
            ("gpt2.n_embd", true)
        );
        let refused = new_model(&job(""), &json!({"n_layer": -3})).unwrap_err().to_string();
        assert!(refused.contains("has no number \"n_layer\""), "{refused}");
    }
}
