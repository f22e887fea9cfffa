//! What is read from elsewhere.

use std::{fs, io::Cursor, path::PathBuf};

use image::{DynamicImage, ImageFormat, RgbImage};
use ringtune_fuzzing::{Path, as_it_is, words};
use ringtune_shared::{
    checkpoint::{self, About, Numerics},
    embedding::LearnedEmbedding,
    ids::ContentHash,
    job::parse_job_toml,
    lora::{Format, LoraFile},
    manifest::{Manifest, ManifestFile},
    state::{Decoder, Dtype, Encoder, MemoryState, State as _, TensorInfo, transfer},
};
use ringtune_worker::{
    data::{images, pixels},
    train::SavedState,
};

use crate::archive::{mend_picture, mend_safetensors};

const MEBIBYTE: u64 = 1 << 20;
const JOB: &str = r#"
kind = "textual_inversion"
name = "a job"
[model]
base = "/models/sd"
[data]
images = "./pictures"
[train]
placeholder_token = "<cat-toy>"
initializer_token = "toy"
templates = ["a {} b", "{}"]
learning_rate = 5.0e-3
max_train_steps = 10
[cluster]
world_size = 2
min_world_size = 1
"#;

/// A list that one text may stand for.
const ADAPTERS: &str = r#"
kind = "lora"
[model]
base = "/models/sd"
[data]
source = "hf://datasets/org/name@main"
caption_column = "words"
[train]
max_train_steps = 10
caption_dropout = 0.1
[lora]
rank = 8
alpha = 4.5
targets = ["attn2.to_k", "attn2.to_v"]
"#;

/// Tables and lists of them.
const CONCEPTS: &str = r#"
kind = "textual_inversion"
[model]
base = "hf://org/name@main"
variant = "fp16"
[[concepts]]
placeholder_token = "<one>"
initializer_token = "a star"
num_vectors = 2
folders = [{ images = "./a", repeats = 2 }, { images = "./b" }]
templates = ["a photo of [name], [caption]"]
[[concepts]]
placeholder_token = "<two>"
initializer_token = "heart"
images = "./c"
caption_column = "words"
[train]
learning_rates = "0.005:100, 1e-3:1000, 1e-5"
caption_dropout = 0.1
shuffle_tags = true
keep_tags = 1
enable_bucket = true
min_bucket_reso = 128
num_train_epochs = 2
repeats = 3
select_best = true
validation_loss_steps = 10
"#;
const DRAWING: &str = r#"
kind = "generate"
[model]
base = "s3://bucket/prefix"
[generate]
prompts = ["a <one>", "a toy"]
count = 4
scheduler = "ddim"
embeddings = ["./one.safetensors"]
"#;
const WORDS: &str = r#"
kind = "gpt2_finetune"
[model]
base = "hf://org/gpt2"
[gpt2]
tokens = "./tokens"
init_from = "scratch"
n_layer = 2
learning_rate = 3e-4
resume_from_checkpoint = 500
"#;
const TEXTS: &str = r#"
kind = "generate_text"
[model]
base = "s3://bucket/gpt2"
[generate_text]
prompts = ["The ring", ""]
num_samples = 3
temperature = 0.5
top_p = 0.9
stop_at_end_of_text = false
"#;

fn words_of(texts: &[String]) -> Vec<String> {
    let word = |c: char| !(c.is_alphanumeric() || c == '_');
    let mut words: Vec<String> =
        texts.iter().flat_map(|text| text.split(word)).filter(|w| !w.is_empty()).map(str::to_owned).collect();
    words.sort();
    words.dedup();
    words
}

#[test]
fn job_file() {
    // With every key there is, too.
    let full = parse_job_toml(JOB).unwrap().to_toml().unwrap();
    let texts = [JOB, &full, CONCEPTS, ADAPTERS, DRAWING, WORDS, TEXTS].map(str::to_owned);
    Path {
        name: "job-file",
        words: words_of(&texts),
        valid: texts.iter().map(|text| text.clone().into_bytes()).collect(),
        mend: as_it_is,
        most_bytes: 64 * MEBIBYTE,
        read: Box::new(|bytes| match parse_job_toml(&String::from_utf8_lossy(bytes)) {
            // What is accepted is written and read back as the same.
            Ok(job) => {
                assert_eq!(parse_job_toml(&job.to_toml().unwrap()).as_ref(), Ok(&job));
                true
            }
            Err(error) => {
                assert!(!error.violations.is_empty() && !error.to_string().is_empty());
                false
            }
        }),
    }
    .fuzz(env!("CARGO_TARGET_TMPDIR"));
}

#[test]
fn manifest() {
    let file = |name: &str, captions: &[&str]| {
        let captions = captions.iter().map(|&caption| caption.to_owned()).collect();
        ManifestFile::new(name.to_owned(), ContentHash::of(name.as_bytes()), 9, captions)
    };
    let files = vec![file("a.png", &[]), file("b.jpg", &["red"]), file("ü.webp", &["a cat", "a toy"])];
    let json = Manifest::new(files).unwrap().to_json().unwrap();
    Path {
        name: "manifest",
        words: words_of(&[String::from_utf8(json.clone()).unwrap()]),
        valid: vec![json],
        mend: as_it_is,
        most_bytes: 64 * MEBIBYTE,
        read: Box::new(|bytes| match Manifest::parse(bytes) {
            Ok(manifest) => {
                assert!(manifest.files().iter().all(|file| !file.name.contains('/')));
                true
            }
            Err(_) => false,
        }),
    }
    .fuzz(env!("CARGO_TARGET_TMPDIR"));
}

#[test]
fn checkpoint_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoint");
    let about = About {
        step: 7,
        version: "0.1.0".to_owned(),
        model_hash: "m".to_owned(),
        data_hash: "d".to_owned(),
        options: [("train.seed".to_owned(), 7.into())].into(),
        numerics: Numerics { class: "c".to_owned(), threads_per_rank: 2, precision: "no".to_owned() },
        provenance: "c".to_owned(),
    };
    let mut state = SavedState::default();
    state.put_number("count", u64::MAX);
    state.put_tensor("a", vec![1.5, -0.0]);
    state.put_tensor("b", vec![f32::INFINITY]);
    ringtune_shared::checkpoint::write(&file, &about, &state.numbers, &state).unwrap();
    let bytes = fs::read(&file).unwrap();
    Path {
        name: "checkpoint-file",
        words: words_of(&[String::from_utf8_lossy(&bytes).into_owned()]),
        valid: vec![bytes],
        mend: mend_safetensors,
        most_bytes: 64 * MEBIBYTE,
        read: Box::new(|bytes| {
            fs::write(&file, bytes).unwrap();
            let Ok(mut checkpoint) = checkpoint::open(&file) else { return false };
            let _ =
                (checkpoint.header.resumed(), checkpoint.header.about.check(&parse_job_toml(JOB).unwrap()));
            SavedState::read(checkpoint.header.numbers, &mut checkpoint.source).is_ok()
        }),
    }
    .fuzz(env!("CARGO_TARGET_TMPDIR"));
}

fn encoded(tensors: Vec<(TensorInfo, Vec<u8>)>) -> Vec<u8> {
    let state = MemoryState::new(tensors).unwrap();
    let mut encoder = Encoder::new([("format".to_owned(), "pt".to_owned())].into(), Vec::new());
    transfer(&mut *state.source().unwrap(), &mut encoder).unwrap();
    encoder.into_inner()
}

/// A state as it comes from a neighbour: its end is not known, and nothing of it is.
#[test]
fn state_stream() {
    let tensors = [("w", Dtype::F32, vec![2, 3]), ("b", Dtype::BF16, vec![5]), ("n", Dtype::I64, vec![])];
    let tensors = tensors.map(|(name, dtype, shape)| {
        let info = TensorInfo::new(name, dtype, shape).unwrap();
        let bytes = vec![7; info.bytes() as usize];
        (info, bytes)
    });
    let list = "F32|BF16|I64|F4|BOOL|dtype|shape|data_offsets|__metadata__|[0,0]";
    Path {
        name: "state-stream",
        words: words(list),
        valid: vec![encoded(tensors.to_vec())],
        mend: mend_safetensors,
        most_bytes: 64 * MEBIBYTE,
        read: Box::new(|bytes| {
            let Ok(mut decoder) = Decoder::new(bytes, None) else { return false };
            let header = decoder.header().clone();
            assert!(header.bytes <= bytes.len() as u64);
            let whole = Encoder::hash(header.metadata.clone(), &mut decoder);
            if whole.is_ok() {
                assert_eq!(header.size(), bytes.len() as u64);
            }
            whole.is_ok()
        }),
    }
    .fuzz(env!("CARGO_TARGET_TMPDIR"));
}

#[test]
fn learned_embedding() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/embeddings");
    let files = ["a1111.pt", "ldm-fp16.pt", "learned_embeds.bin", "emb_params-fp16.safetensors"];
    // Names that are known, names that are not, and opcodes that call.
    let list = "ctorch\nFloatStorage\n|ctorch\nLongStorage\n|ctorch._utils\n_rebuild_tensor_v2\n\
        |ccollections\nOrderedDict\n|ctorch.nn.modules.container\nParameterDict\n|c__builtin__\nset\n\
        |cos\nsystem\n|string_to_param|_parameters|PK\x05\x06|PK\x01\x02|)R|h\x00|(((";
    Path {
        name: "learned-embedding",
        words: words(list),
        valid: files.map(|file| fs::read(folder.join(file)).unwrap()).to_vec(),
        mend: as_it_is,
        most_bytes: 64 * MEBIBYTE,
        read: Box::new(|bytes| match LearnedEmbedding::from_bytes(bytes) {
            Ok(learned) => {
                assert!(
                    (1..=1024).contains(&learned.vectors()) && learned.rows.iter().all(|one| one.is_finite())
                );
                assert_eq!(learned.rows.len(), learned.vectors() * learned.width);
                true
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        }),
    }
    .fuzz(env!("CARGO_TARGET_TMPDIR"));
}

#[test]
fn lora_file() {
    let module = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn2_to_k";
    let parts = [("lora_down.weight", vec![1, 768]), ("lora_up.weight", vec![1280, 1]), ("alpha", vec![])];
    let tensors = parts.map(|(part, shape)| {
        let info = TensorInfo::new(format!("{module}.{part}"), Dtype::F16, shape).unwrap();
        let bytes = vec![0x3c; info.bytes() as usize];
        (info, bytes)
    });
    let list = "F32|BF16|F64|I64|[]|[1]|[768]|lora_te_|lora_te1_|lora_te2_|dora_scale|lora_A|__metadata__|\
        {\"lora_adapter_metadata\":\"{}\"}|format|unet.";
    Path {
        name: "lora-file",
        words: words(list),
        valid: vec![encoded(tensors.to_vec())],
        mend: mend_safetensors,
        most_bytes: 64 * MEBIBYTE,
        read: Box::new(|bytes| match LoraFile::from_bytes(bytes) {
            // What is accepted is written and read back as the same.
            Ok(lora) => {
                let mut there = Vec::new();
                lora.write(Format::Peft, &mut there).unwrap();
                assert_eq!(LoraFile::from_bytes(&there).unwrap().modules, lora.modules);
                true
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        }),
    }
    .fuzz(env!("CARGO_TARGET_TMPDIR"));
}

/// Pictures of every kind that is read, small. Those that the `image` crate cannot write lie in `corpus`.
fn pictures() -> Vec<Vec<u8>> {
    let picture = RgbImage::from_fn(7, 5, |x, y| image::Rgb([x as u8 * 30, y as u8 * 50, 90]));
    let whole = DynamicImage::from(picture);
    let write = |picture: &DynamicImage, format| {
        let mut bytes = Cursor::new(Vec::new());
        picture.write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    };
    let mut all = vec![
        write(&whole, ImageFormat::Jpeg),
        write(&whole, ImageFormat::Png),
        write(&whole, ImageFormat::WebP),
        write(&whole.to_rgb16().into(), ImageFormat::Png),
        write(&whole.to_luma_alpha8().into(), ImageFormat::Png),
    ];
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let mut files: Vec<PathBuf> = fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    all.extend(files.iter().map(|file| fs::read(file).unwrap()));
    all
}

#[test]
fn image() {
    let list = "IHDR|PLTE|IDAT|IEND|tRNS|acTL|fcTL|eXIf|iCCP|zTXt|VP8 |VP8L|VP8X|ALPH|ANIM|ANMF|Exif";
    Path {
        name: "image",
        words: words(list),
        valid: pictures(),
        mend: mend_picture,
        // Twice the 512 MiB that a decoded picture may have, and what its decoder needs.
        most_bytes: 1536 * MEBIBYTE,
        read: Box::new(|bytes| match images::decode("fuzz", bytes) {
            Ok(picture) => {
                assert!(picture.width() >= 1 && picture.height() >= 1);
                let pixels = pixels::prepare(&picture, 16, true, true);
                assert!(pixels.data.iter().all(|value| (-1.0..=1.0).contains(value)));
                true
            }
            Err(_) => false,
        }),
    }
    .fuzz(env!("CARGO_TARGET_TMPDIR"));
}
