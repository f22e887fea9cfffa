//! Invalid folders of a GPT-2, each with an error that names file, key or tensor; and invalid calls. The models are made here, small.

#![allow(clippy::unwrap_used, reason = "a test ends where something is missing")]

#[path = "support/saved.rs"]
mod saved;

use std::path::Path;

use ringtune_model::{
    AlignedFloats, BucketSizes, Buckets, EmbeddingRows, EngineError, Error, Gpt2, Gpt2Text, HeldState as _,
    LanguageModelFolder, LanguageModelSource, NewLanguageModel, OpenLanguageModel, OpenTextModel,
    OptimizerStep, Precision, Runtime, TokenBatch,
};
use safetensors::SafeTensors;
use saved::{Tensors, save};

const NEW: NewLanguageModel = NewLanguageModel {
    vocab_size: 29,
    n_positions: 8,
    n_layer: 2,
    n_head: 2,
    n_embd: 12,
    bias: true,
    seed: 5,
};

const STEP: OptimizerStep = OptimizerStep {
    number: 1,
    learning_rate: 0.1,
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weight_decay: 0.1,
    max_grad_norm: Some(1.0),
    divide_by: 1,
    other_rates: [0.0; 2],
    average_decay: None,
};

fn request(source: LanguageModelSource, precision: Precision) -> OpenLanguageModel {
    OpenLanguageModel { source, precision, threads: 1, buckets: BucketSizes { first: 256, others: 4096 } }
}

fn new_model(new: NewLanguageModel) -> Gpt2 {
    Runtime::initialise(1).unwrap();
    Gpt2::open(&request(LanguageModelSource::New(new), Precision::Fp32)).unwrap()
}

fn open(folder: &Path) -> Result<Gpt2, Error> {
    Gpt2::open(&request(LanguageModelSource::folder(folder), Precision::Fp32))
}

/// A folder with a saved model.
fn saved(new: NewLanguageModel) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    save(&new_model(new), folder.path());
    folder
}

fn batch() -> TokenBatch {
    let ids = |first: i64| (0..10).map(|place| (place * 7 + first) % 29).collect();
    let inputs: Vec<i64> = ids(3);
    let looked_up = EmbeddingRows::of(inputs.iter().copied());
    TokenBatch { batch: 2, block: 5, inputs, targets: ids(10), looked_up, add: false, dropout: None }
}

/// Of the plan's buckets, and of that of what the batch looks up.
fn lengths(model: &Gpt2) -> Vec<usize> {
    let info = model.parameters.info();
    let plan = info.plan.buckets.iter().map(|bucket| bucket.length);
    plan.chain([info.looked_up_length(&batch().looked_up)]).collect()
}

/// Full of one number.
fn buckets(lengths: &[usize], value: f32) -> Vec<AlignedFloats> {
    let filled = |length: &usize| {
        let mut bucket = AlignedFloats::zeros(*length);
        bucket.fill(value);
        bucket
    };
    lengths.iter().map(filled).collect()
}

/// Writes the folder's tensors anew, as `change` leaves them.
fn rewritten(folder: &Path, change: impl FnOnce(&mut Tensors)) {
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let mut tensors: Tensors = SafeTensors::deserialize(&bytes)
        .unwrap()
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, (view.shape().to_vec(), view.data().to_vec())))
        .collect();
    change(&mut tensors);
    saved::write(folder, &tensors);
}

#[test]
fn a_saved_model_is_read_as_the_same() {
    for bias in [true, false] {
        let mut model = new_model(NewLanguageModel { bias, ..NEW });
        let folder = tempfile::tempdir().unwrap();
        save(&model, folder.path());
        let mut again = open(folder.path()).unwrap();
        // Offsets of zero change nothing.
        assert_eq!(again.info().parameters.list.len(), 28);
        assert_eq!(model.info().parameters.list.len(), if bias { 28 } else { 15 });
        assert_eq!(again.loss(&batch()).unwrap().to_bits(), model.loss(&batch()).unwrap().to_bits());
    }
}

/// nanoGPT's `crop_block_size`.
#[test]
fn a_model_that_is_opened_with_fewer_positions_is_one_of_so_many() {
    let folder = saved(NEW);
    let cropped = |positions| LanguageModelFolder { path: folder.path().to_path_buf(), positions };
    let open_cropped = |positions| {
        Gpt2::open(&request(LanguageModelSource::Folder(cropped(Some(positions))), Precision::Fp32))
    };
    let (mut whole, mut short) = (open(folder.path()).unwrap(), open_cropped(5).unwrap());
    let table = |model: &Gpt2| {
        let parameters = model.info().parameters.list;
        let table = parameters.iter().find(|one| one.name == "transformer.wpe.weight").unwrap();
        let mut rows = vec![0; 4 * table.elements()];
        model.parameters.read_state("model.transformer.wpe.weight", 0, &mut rows).unwrap();
        (table.shape.clone(), rows)
    };
    let ((_, all), (shape, rows)) = (table(&whole), table(&short));
    assert_eq!((short.info().n_positions, shape), (5, vec![5, 12]));
    assert!(rows == all[..rows.len()]);
    // Texts that it has room for are the same to it, and longer ones are refused.
    assert_eq!(short.loss(&batch()).unwrap().to_bits(), whole.loss(&batch()).unwrap().to_bits());
    let longer = TokenBatch { batch: 1, block: 6, inputs: vec![1; 6], targets: vec![1; 6], ..batch() };
    assert!(whole.loss(&longer).is_ok() && short.loss(&longer).is_err());
    // The saved model is complete.
    let saved = tempfile::tempdir().unwrap();
    save(&short, saved.path());
    let again = open(saved.path()).unwrap();
    assert_eq!((again.info().n_positions, table(&again).1 == rows), (5, true));
    let text = LanguageModelSource::Folder(cropped(Some(5)));
    let text = OpenTextModel { source: text, precision: Precision::Fp32, threads: 1 };
    assert_eq!(Gpt2Text::open(&text).unwrap().info().n_positions, 5);
    for positions in [0, 9] {
        let error = open_cropped(positions).unwrap_err();
        assert!(matches!(&error, Error::Argument { field: "positions", .. }), "{error}");
    }
}

#[test]
fn first_weights_are_nanogpts_and_follow_from_the_seed() {
    let read = |model: &Gpt2, name: &str, length: usize| -> Vec<f32> {
        let mut bytes = vec![0; length * 4];
        model.parameters.read_state(&format!("model.transformer.{name}"), 0, &mut bytes).unwrap();
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    };
    let new = NewLanguageModel { vocab_size: 3000, n_embd: 64, n_layer: 3, ..NEW };
    let model = new_model(new);
    for (name, length, deviation) in [
        ("wte.weight", 3000 * 64, 0.02),
        ("h.1.attn.c_attn.weight", 64 * 192, 0.02),
        ("h.2.attn.c_proj.weight", 64 * 64, 0.02 / 6f64.sqrt()),
        ("h.0.mlp.c_proj.weight", 256 * 64, 0.02 / 6f64.sqrt()),
    ] {
        let values = read(&model, name, length);
        let moment = |power: i32| {
            values.iter().map(|value| f64::from(*value).powi(power)).sum::<f64>() / length as f64
        };
        // Five standard errors.
        let error = 5.0 / (length as f64).sqrt();
        assert!(moment(1).abs() < error * deviation, "{name}: {}", moment(1));
        assert!((moment(2).sqrt() / deviation - 1.0).abs() < error, "{name}: {}", moment(2).sqrt());
        assert!((moment(4) / (3.0 * deviation.powi(4)) - 1.0).abs() < 2.0 * error, "{name}: {}", moment(4));
    }
    assert_eq!(read(&model, "ln_f.weight", 64), [1.0; 64]);
    assert_eq!(read(&model, "h.0.mlp.c_fc.bias", 256), [0.0; 256]);
    // Frozen: made by another implementation (in Python) of the layout in gpt2/initial.rs.
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let first = bits(read(&model, "wte.weight", 3000 * 64));
    assert_eq!(first[..5], FROZEN);
    // As many threads as there are, or one; the same seed or another.
    Runtime::initialise(3).unwrap();
    let source = LanguageModelSource::New(new);
    let again = Gpt2::open(&request(source, Precision::Fp32)).unwrap();
    assert!(bits(read(&again, "wte.weight", 3000 * 64)) == first);
    let other = new_model(NewLanguageModel { seed: 6, ..new });
    assert!(bits(read(&other, "wte.weight", 3000 * 64)) != first);
}

const FROZEN: [u32; 5] = [0x3c2a_e4f8, 0x3c33_d993, 0xbcaa_53f0, 0xbc4d_617b, 0x3ca4_7e70];

#[test]
fn tensors_that_do_not_fit_are_named() {
    let table = "transformer.wte.weight";
    let zeros = |shape: &[usize]| (shape.to_vec(), vec![0; 4 * shape.iter().product::<usize>()]);
    let error = |change: &dyn Fn(&mut Tensors)| {
        let folder = saved(NEW);
        rewritten(folder.path(), change);
        open(folder.path()).err()
    };
    let missing = error(&|tensors| drop(tensors.remove("transformer.h.1.ln_2.bias")));
    assert!(matches!(missing, Some(Error::MissingTensor { tensor, .. }) if tensor == "h.1.ln_2.bias"));
    let extra =
        error(&|tensors| drop(tensors.insert("transformer.h.2.ln_1.weight".to_owned(), zeros(&[12]))));
    assert!(matches!(extra, Some(Error::ExtraTensors { names, .. }) if names.contains("h.2.ln_1.weight")));
    let wrong = error(&|tensors| drop(tensors.insert(table.to_owned(), zeros(&[28, 12]))));
    assert!(matches!(wrong, Some(Error::WrongShape { tensor, .. }) if tensor == table));
    let head = error(&|tensors| drop(tensors.insert("lm_head.weight".to_owned(), zeros(&[29, 12]))));
    assert!(head.unwrap().to_string().contains("lm_head.weight"));
    let same = error(&|tensors| {
        let table = tensors[table].clone();
        tensors.insert("lm_head.weight".to_owned(), table);
        tensors.insert("transformer.h.0.attn.bias".to_owned(), zeros(&[1, 1, 8, 8]));
        tensors.insert("transformer.h.0.attn.masked_bias".to_owned(), zeros(&[1]));
    });
    assert!(same.is_none(), "{same:?}");
    let twice = error(&|tensors| drop(tensors.insert("wte.weight".to_owned(), zeros(&[29, 12]))));
    assert!(matches!(twice, Some(Error::BadSafetensors { .. })));
}

#[test]
fn folders_that_are_no_model_say_why() {
    let error = |change: &dyn Fn(&Path)| {
        let folder = saved(NEW);
        change(folder.path());
        open(folder.path()).unwrap_err()
    };
    let pickled = error(&|folder| {
        std::fs::rename(folder.join("model.safetensors"), folder.join("pytorch_model.bin")).unwrap();
    });
    assert!(pickled.to_string().contains("transformers: GPT2LMHeadModel"), "{pickled}");
    let no_config = error(&|folder| std::fs::remove_file(folder.join("config.json")).unwrap());
    assert!(matches!(no_config, Error::NotAModel { .. }), "{no_config}");
    let short = error(&|folder| {
        let file = folder.join("model.safetensors");
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() - 100]).unwrap();
    });
    assert!(matches!(short, Error::BadSafetensors { .. }), "{short}");
    let other = error(&|folder| {
        let file = folder.join("config.json");
        let text = std::fs::read_to_string(&file).unwrap().replace("gelu_new", "relu");
        std::fs::write(&file, text).unwrap();
    });
    assert!(matches!(&other, Error::Config { key, .. } if key == "activation_function"), "{other}");
}

/// Gives buckets of other lengths, where told so.
struct Made(Vec<usize>);

impl Buckets for Made {
    fn take(&mut self, bucket: usize) -> Result<AlignedFloats, EngineError> {
        Ok(AlignedFloats::zeros(self.0[bucket]))
    }

    fn give(&mut self, _: usize, _: AlignedFloats) -> Result<(), EngineError> {
        Ok(())
    }
}

#[test]
fn calls_that_do_not_fit_are_refused_by_their_field_and_move_nothing() {
    let mut model = new_model(NEW);
    let lengths = lengths(&model);
    let before = model.loss(&batch()).unwrap();
    for (field, batch) in [
        ("batch", TokenBatch { batch: 0, ..batch() }),
        ("block", TokenBatch { block: 9, ..batch() }),
        ("inputs", TokenBatch { inputs: vec![0; 9], ..batch() }),
        ("inputs", TokenBatch { inputs: vec![29; 10], ..batch() }),
        ("targets", TokenBatch { targets: vec![-1; 10], ..batch() }),
        ("targets", TokenBatch { targets: vec![0; 11], ..batch() }),
    ] {
        for error in
            [model.loss(&batch).unwrap_err(), model.gradient(&batch, &mut Made(lengths.clone())).unwrap_err()]
        {
            assert!(matches!(&error, Error::Argument { field: found, .. } if *found == field), "{error}");
        }
    }
    // What is looked up is asked for where there is a gradient.
    let few = EmbeddingRows::of(batch().inputs.into_iter().skip(1));
    let beyond = EmbeddingRows::of(batch().inputs.into_iter().chain([29]));
    for looked_up in [EmbeddingRows::default(), few, beyond.clone()] {
        let batch = TokenBatch { looked_up, ..batch() };
        assert_eq!(model.loss(&batch).unwrap(), before);
        let error = model.gradient(&batch, &mut Made(lengths.clone())).unwrap_err();
        assert!(matches!(&error, Error::Argument { field: "looked_up", .. }), "{error}");
    }
    let mut short = lengths.clone();
    for bucket in [1, lengths.len() - 1] {
        short.clone_from(&lengths);
        short[bucket] -= 1;
        let error = model.gradient(&batch(), &mut Made(short.clone())).unwrap_err();
        assert!(matches!(&error, Error::Argument { field: "buckets", .. }), "{error}");
    }
    let looked_up = batch().looked_up;
    let mut longer = lengths.clone();
    longer[lengths.len() - 1] += 12;
    for (field, looked_up, lengths, beta2) in [
        ("buckets", &looked_up, &short, 0.95),
        ("buckets", &EmbeddingRows::default(), &lengths, 0.95),
        ("looked_up", &beyond, &longer, 0.95),
        ("beta2", &looked_up, &lengths, 1.0),
    ] {
        let step = OptimizerStep { beta2, ..STEP };
        let error = model.parameters.apply(&step, looked_up, &mut buckets(lengths, 1.0)).unwrap_err();
        assert!(matches!(&error, Error::Argument { field: found, .. } if *found == field), "{error}");
    }
    // In any bucket, that of what is looked up alone too: what is large is held, what is not finite is skipped.
    for value in [f32::NAN, f32::INFINITY, 1e30] {
        for bucket in 0..lengths.len() {
            let before = model.loss(&batch()).unwrap();
            let mut gradients = buckets(&lengths, 0.0);
            gradients[bucket][0] = value;
            let applied = model.parameters.apply(&STEP, &looked_up, &mut gradients).unwrap();
            assert_eq!(applied.skipped, !value.is_finite(), "{bucket}: {applied:?}");
            if applied.skipped {
                assert_eq!(model.loss(&batch()).unwrap(), before);
            }
        }
    }
    assert_ne!(model.loss(&batch()).unwrap(), before);
    for (tensor, offset, length) in
        [("wte", 0, 4), ("model.transformer.wte.weight", 2, 4), ("model.transformer.ln_f.bias", 44, 8)]
    {
        let error = model.parameters.read_state(tensor, offset, &mut vec![0; length]).unwrap_err();
        assert!(matches!(&error, Error::Argument { field: "tensor" | "offset", .. }), "{error}");
        assert!(model.parameters.write_state(tensor, offset, &vec![0; length]).is_err());
    }
}

#[test]
fn a_state_that_is_held_is_read_elsewhere_while_passes_are_computed_and_does_not_move() {
    let mut model = new_model(NEW);
    let names: Vec<String> = model.parameters.state_tensors().into_iter().map(|tensor| tensor.name).collect();
    let name = "model.transformer.wte.weight";
    let (one, other) = (model.parameters.hold_state().unwrap(), model.parameters.hold_state().unwrap());
    let mut before = vec![0; 1024];
    model.parameters.read_state(name, 64, &mut before).unwrap();
    // 1. On another thread, beside a pass; all tensors are there.
    let loss = model.loss(&batch()).unwrap();
    let reader = std::thread::spawn(move || {
        let mut read = vec![0; 1024];
        one.read(name, 64, &mut read).unwrap();
        names.iter().for_each(|name| one.read(name, 0, &mut [0; 4]).unwrap());
        for (tensor, offset, length) in
            [("wte", 0, 4), (name, 2, 4), (name, u64::MAX - 3, 4), (name, 1 << 40, 4)]
        {
            assert!(one.read(tensor, offset, &mut vec![0; length]).is_err(), "{tensor} from {offset}");
        }
        read
    });
    assert_eq!(model.loss(&batch()).unwrap(), loss);
    assert!(reader.join().unwrap() == before);
    // 2. Nothing moves until the last one lets go.
    let mut gradients = buckets(&lengths(&model), 1.0);
    let step = OptimizerStep { max_grad_norm: None, ..STEP };
    let looked_up = batch().looked_up;
    assert!(matches!(model.parameters.apply(&step, &looked_up, &mut gradients), Err(Error::Held)));
    assert!(gradients.iter().all(|bucket| bucket.iter().all(|number| *number == 1.0)), "nothing was added");
    assert!(matches!(model.parameters.write_state(name, 0, &[0; 4]), Err(Error::Held)));
    assert_eq!(model.loss(&batch()).unwrap(), loss);
    drop(other);
    assert!(!model.parameters.apply(&step, &looked_up, &mut gradients).unwrap().skipped);
    assert_ne!(model.loss(&batch()).unwrap(), loss);
    // 3. It outlives the model.
    let held = model.parameters.hold_state().unwrap();
    let mut moved = vec![0; 1024];
    model.parameters.read_state(name, 64, &mut moved).unwrap();
    drop(model);
    let mut read = vec![0; 1024];
    held.read(name, 64, &mut read).unwrap();
    assert!(read == moved && moved != before);
}
