//! `ringtune-worker pipeline` with libtorch's loader: what is in the folder that it makes.

#![allow(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use ringtune_worker::{
    data::ClipTokenizer,
    engine::ModelOptions,
    output::TensorFile,
    pipeline::{self, Error, PipelineArguments},
};
use ringtune_worker_daemon::LIBTORCH;
use safetensors::SafeTensors;

/// Of the toy model.
const VOCABULARY: i64 = 49_408;

fn toy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/toy-sd")
}

/// Floats of a token's row.
fn width() -> usize {
    (LIBTORCH.check_folder)(&toy(), &ModelOptions::default()).unwrap().text_width
}

/// Two rows of the toy's width for `<cat>`.
fn embedding(folder: &Path) -> (PathBuf, Vec<f32>) {
    let width = width();
    let rows: Vec<f32> = (0..2 * width).map(|number| number as f32 / 3.0).collect();
    let file = folder.join("cat.safetensors");
    TensorFile::new().with_f32("<cat>", &[2, width], &rows).unwrap().write(&file).unwrap();
    (file, rows)
}

fn arguments(folder: &Path) -> PipelineArguments {
    let (embeds, _) = embedding(folder);
    PipelineArguments {
        model: toy().to_str().unwrap().to_owned(),
        revision: String::new(),
        unet: None,
        max_shard_size: 10_000_000_000,
        embeds: vec![embeds],
        token: Vec::new(),
        copy: false,
        output: folder.join("pipeline"),
    }
}

fn run(arguments: &PipelineArguments) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(pipeline::run(arguments.clone(), LIBTORCH))
}

/// The folder's tokenizer reads `tokens` as the ids from `first` on, and its table ends with their `rows`.
fn knows(folder: &Path, first: i64, tokens: &[&str], rows: &[f32]) {
    let tokenizer = ClipTokenizer::open(&folder.join("tokenizer"), 77).unwrap();
    for (token, id) in tokens.iter().zip(first..) {
        assert_eq!(tokenizer.encode(token).unwrap()[1], id, "{token}");
    }
    let bytes = fs::read(folder.join("text_encoder/model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let table = tensors.tensor("embeddings.token_embedding.weight").unwrap();
    let learned: Vec<u8> = rows.iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_eq!(table.shape()[0] as i64, first + tokens.len() as i64);
    assert!(table.data().ends_with(&learned), "the table does not end with the learned rows");
}

#[test]
fn a_pipeline_has_the_token_its_rows_and_everything_else_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = arguments(folder.path());
    let output = arguments.output.clone();
    run(&arguments).unwrap();
    let (_, rows) = embedding(folder.path());
    knows(&output, VOCABULARY, &["<cat>", "<cat>_1"], &rows);
    let same = |one: &str| fs::read(toy().join(one)).unwrap() == fs::read(output.join(one)).unwrap();
    for name in ["unet/diffusion_pytorch_model.safetensors", "vae/config.json", "tokenizer/merges.txt"] {
        assert!(same(name), "{name}");
    }
    assert!(!same("text_encoder/config.json"));
    // Rows before the learned ones are the model's, exactly.
    let [old, new] =
        [&toy(), &output].map(|folder| (LIBTORCH.check_folder)(folder, &ModelOptions::default()).unwrap());
    assert_eq!((old.vocab_size + 2, old.text_width), (new.vocab_size, new.text_width));
    // Again, over itself and without links; nothing else stays behind.
    run(&PipelineArguments { copy: true, ..arguments }).unwrap();
    let unet = output.join("unet/diffusion_pytorch_model.safetensors");
    assert_eq!(fs::metadata(unet).unwrap().nlink(), 1);
    let mut names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["cat.safetensors", "pipeline"]);
}

#[test]
fn a_pipeline_can_learn_another_word() {
    let folder = tempfile::tempdir().unwrap();
    let first = arguments(folder.path());
    run(&first).unwrap();
    let width = width();
    let dog = folder.path().join("dog.safetensors");
    let rows = vec![0.25; width];
    TensorFile::new().with_f32("<dog>", &[1, width], &rows).unwrap().write(&dog).unwrap();
    let output = folder.path().join("second");
    let model = first.output.to_str().unwrap().to_owned();
    run(&PipelineArguments { model, embeds: vec![dog], output: output.clone(), ..first }).unwrap();
    knows(&output, VOCABULARY + 2, &["<dog>"], &rows);
    let tokenizer = ClipTokenizer::open(&output.join("tokenizer"), 77).unwrap();
    assert_eq!(tokenizer.encode("<cat>_1").unwrap()[1], 49_409);
}

/// All tensors of a UNet's folder, and how many files they are in.
fn weights(folder: &Path) -> (BTreeMap<String, Vec<u8>>, usize) {
    let files = fs::read_dir(folder.join("unet")).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|path| path.extension().unwrap() == "safetensors").collect();
    let tensors = files.iter().flat_map(|file| {
        let bytes = fs::read(file).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let owned = |(name, view): (String, safetensors::tensor::TensorView)| (name, view.data().to_vec());
        tensors.tensors().into_iter().map(owned).collect::<Vec<_>>()
    });
    (tensors.collect(), files.len())
}

#[test]
fn a_unet_goes_into_shards_and_comes_out_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let own = toy().join("unet/diffusion_pytorch_model.safetensors");
    let (whole, _) = weights(&toy());
    let bytes: usize = whole.values().map(Vec::len).sum();
    // 1. The loader takes what was written, and nothing is lost.
    let base = PipelineArguments { embeds: Vec::new(), ..arguments(folder.path()) };
    let limit = bytes as u64 / 3;
    let sharded = PipelineArguments { unet: Some(own), max_shard_size: limit, ..base.clone() };
    run(&sharded).unwrap();
    let (in_shards, files) = weights(&sharded.output);
    assert!(in_shards == whole && (3..6).contains(&files), "{files} files");
    // 2. A part that was trained goes into a model in shards.
    let (name, rows) = ("conv_out.bias", [1.0, 2.0, 3.0, 4.0]);
    let part = folder.path().join("part.safetensors");
    TensorFile::new().with_f32(name, &[4], &rows).unwrap().write(&part).unwrap();
    let model = sharded.output.to_str().unwrap().to_owned();
    let output = folder.path().join("part");
    run(&PipelineArguments { model, unet: Some(part), output: output.clone(), ..base.clone() }).unwrap();
    let (mut changed, files) = weights(&output);
    assert_eq!(files, 1);
    assert_eq!(
        changed.insert(name.to_owned(), whole[name].clone()).unwrap(),
        rows.map(f32::to_le_bytes).concat()
    );
    assert!(changed == whole);
    // 3. Shards are given by their index; one that lies is refused.
    let index = sharded.output.join("unet/diffusion_pytorch_model.safetensors.index.json");
    let output = folder.path().join("again");
    let again = PipelineArguments { unet: Some(index.clone()), output: output.clone(), ..base };
    run(&again).unwrap();
    assert!(weights(&output).0 == whole);
    fs::write(&index, r#"{"weight_map": {"conv_out.bias": "../x.safetensors"}}"#).unwrap();
    let refused = run(&again).unwrap_err().to_string();
    assert!(refused.contains("file name of this folder"), "{refused}");
}

#[test]
fn what_is_there_or_wrong_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = arguments(folder.path());
    fs::create_dir(&arguments.output).unwrap();
    fs::write(arguments.output.join("thesis.tex"), "mine").unwrap();
    let refused = run(&arguments).unwrap_err().to_string();
    assert!(refused.contains("no pipeline"), "{refused}");
    assert_eq!(fs::read(arguments.output.join("thesis.tex")).unwrap(), b"mine");
    let elsewhere = folder.path().join("new/pipeline");
    for model in [folder.path().to_owned(), toy().join("unet")] {
        let model = model.to_str().unwrap().to_owned();
        let error =
            run(&PipelineArguments { model, output: elsewhere.clone(), ..arguments.clone() }).unwrap_err();
        assert!(error.to_string().contains("model_index.json"), "{error}");
        assert!(!elsewhere.exists());
    }
    let revision = "main".to_owned();
    let error = run(&PipelineArguments { revision, output: elsewhere, ..arguments }).unwrap_err();
    assert!(error.is_usage() && error.to_string().starts_with("--revision"), "{error}");
}
