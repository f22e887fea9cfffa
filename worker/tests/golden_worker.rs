//! Data and optimizer against goldens made with transformers, Pillow, torch and diffusers
//! (tests/reference/golden.py says what each file holds).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where something is missing")]

#[path = "../model/tests/support/mod.rs"]
mod support;

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use ringtune_shared::{ids::ContentHash, job::LrScheduler};
use ringtune_worker::{
    access::ConfinedPath,
    data::{
        ClipTokenizer, Error, ImageFile,
        buckets::{BucketOptions, Buckets, Placement},
        images, pixels,
    },
    engine::Moments,
    generate_text::Sampling,
    train::{AdamW, AdamWOptions, LrOptions, LrSchedule, latent},
};
use serde_json::{Value, json};
use support::{GoldenFile, Values, golden_folder, relative_error, toy_checkpoint};

/// Where decoders may differ: JPEG leaves the inverse transform's rounding open.
const MOST_JPEG_DIFFERENCE: u8 = 3;

fn json(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(golden_folder().join(name)).expect(name);
    serde_json::from_str(&text).expect(name)
}

fn tokenizer_folder(checkpoint: &str) -> PathBuf {
    let folder = if checkpoint == "toy-sd" { toy_checkpoint() } else { golden_folder().join(checkpoint) };
    folder.join("tokenizer")
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().expect("a list").iter().map(|text| text.as_str().expect("text")).collect()
}

fn ids(value: &Value) -> Vec<i64> {
    value.as_array().expect("a list").iter().map(|id| id.as_i64().expect("an id")).collect()
}

#[test]
fn token_ids_equal_those_of_transformers() {
    let cases = json("tokens.json");
    assert!(cases.len() >= 3);
    for case in &cases {
        let checkpoint = case["checkpoint"].as_str().expect("a name");
        let mut tokenizer = ClipTokenizer::open(&tokenizer_folder(checkpoint), 77).expect("a tokenizer");
        let unchanged = tokenizer.clone();
        let tokens = texts(&case["placeholder_tokens"]);
        if let Some(first) = tokens.first() {
            let added = tokenizer.add_placeholders(first, tokens.len()).expect("new tokens");
            assert_eq!(added.tokens, tokens);
            assert_eq!(added.ids, ids(&case["placeholder_ids"]));
        }
        for prompt in case["prompts"].as_array().expect("prompts") {
            let text = prompt["text"].as_str().expect("text");
            let encoded = tokenizer.encode(text).expect("ids");
            assert_eq!(encoded, ids(&prompt["input_ids"]), "{checkpoint}, {tokens:?}: {text:?}");
        }
        for word in case["words"].as_array().expect("words") {
            check_initializer(&unchanged, word, tokens.is_empty());
        }
    }
}

/// Initializers are looked up before the placeholders are added, so only cases without any have the same ids.
fn check_initializer(tokenizer: &ClipTokenizer, case: &Value, comparable: bool) {
    let word = case["word"].as_str().expect("a word");
    match (tokenizer.initializer_ids(word, 1), ids(&case["ids"]).as_slice()) {
        _ if !comparable => {}
        (Ok(found), [expected]) => assert_eq!(found, [*expected], "{word:?}"),
        (Err(Error::InitializerTokens { tokens, .. }), several) => {
            assert_eq!(tokens.len(), several.len(), "{word:?}");
            assert_ne!(tokens.len(), 1);
            if !several.is_empty() {
                assert_eq!(tokenizer.initializer_ids(word, several.len()).expect("a row for each"), several);
            }
        }
        (other, expected) => panic!("{word:?}: {other:?}, expected {expected:?}"),
    }
}

#[test]
fn pictures_equal_those_of_the_training_script() {
    let golden = GoldenFile::open("pictures.safetensors");
    let set = images::scan(&ConfinedPath::at(golden_folder().join("pictures"))).expect("pictures");
    assert!(set.images.len() >= 15);
    for file in &set.images {
        let picture = file.decode().expect("a picture");
        let decoded = golden.get(&format!("{}/decoded", file.name));
        let (height, width) = (picture.height() as usize, picture.width() as usize);
        assert_eq!(decoded.shape, [height, width, 3], "{}", file.name);
        let Values::Bytes(expected) = &decoded.values else { panic!("{}: not bytes", file.name) };
        let differences = picture.as_raw().iter().zip(expected).map(|(ours, theirs)| ours.abs_diff(*theirs));
        let worst = differences.max().unwrap_or(0);
        let is_jpeg = file.name.ends_with(".jpg");
        let allowed = if is_jpeg { MOST_JPEG_DIFFERENCE } else { 0 };
        assert!(worst <= allowed, "{} is decoded {worst} levels off", file.name);

        for key in golden.keys_below(&file.name) {
            let Some((side, center_crop, flip)) = parse_case(key) else { continue };
            let prepared = pixels::prepare(&picture, side, center_crop, flip);
            assert_eq!((prepared.height, prepared.width), (side as usize, side as usize));
            let expected = golden.floats(&format!("{}/{key}", file.name));
            if is_jpeg {
                // Within a level or two more than the decoders differ by: the filter can overshoot.
                let allowed = f32::from(MOST_JPEG_DIFFERENCE + 2) / 127.5;
                let close = |(ours, theirs): (&f32, &f32)| (ours - theirs).abs() <= allowed;
                assert!(prepared.data.iter().zip(expected).all(close), "{}: {key}", file.name);
            } else {
                // Bit for bit.
                assert!(prepared.data == expected, "{}: {key} differs", file.name);
            }
        }
    }
}

/// What tests/reference/buckets.py answers.
fn ask_about_buckets(questions: &Value) -> Value {
    let reference = support::repository().join("tests/reference");
    let setup = Command::new(reference.join("setup.sh")).output().expect("setup.sh starts");
    let python = String::from_utf8(setup.stdout).expect("a path");
    let mut script = Command::new(python.trim())
        .arg(reference.join("buckets.py"))
        .env_remove("PYTHONDONTWRITEBYTECODE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("buckets.py starts");
    serde_json::to_writer(script.stdin.take().expect("a pipe"), questions).expect("asked");
    // Its stdin is closed; answers are longer than a pipe holds, so that they are read before it is waited for.
    let answers = serde_json::from_reader(script.stdout.take().expect("a pipe")).expect("answered");
    assert!(script.wait().expect("buckets.py ends").success());
    answers
}

#[test]
fn buckets_and_their_pixels_are_those_of_kohyas_rule_and_pillow() {
    // 1. Sizes and settings of all kinds.
    let mut options = Vec::new();
    for (resolution, min_bucket_reso, max_bucket_reso, bucket_reso_steps) in [
        (512, 256, 1024, 64),
        (768, 320, 1536, 64),
        (512, 512, 512, 8),
        (64, 32, 128, 16),
        (500, 200, 1000, 64),
    ] {
        options.extend([false, true].map(|bucket_no_upscale| BucketOptions {
            resolution,
            min_bucket_reso,
            max_bucket_reso,
            bucket_reso_steps,
            bucket_no_upscale,
        }));
    }
    let sides = [64, 100, 129, 200, 333, 511, 512, 513, 640, 768, 1000, 1333, 2048, 3000];
    let sizes: Vec<[u32; 2]> =
        sides.into_iter().flat_map(|width| sides.map(|height| [width, height])).collect();
    // 2. Pictures that decode alike everywhere, in one setting that stretches and one that only shrinks.
    let set = images::scan(&ConfinedPath::at(golden_folder().join("pictures"))).expect("pictures");
    let mut pictures = Vec::new();
    for file in set.images.iter().filter(|file| file.name.ends_with(".png")) {
        let picture = file.decode().expect("a picture");
        for options in &options[6..8] {
            let placement = Buckets::new(*options).place([picture.width(), picture.height()]);
            let Some(placement) = placement else { continue };
            pictures.push((file, placement, pixels::cut_for_bucket(&picture, placement)));
        }
    }
    assert!(pictures.len() >= 12);
    let placed = |placement: &Placement| json!({"resized": placement.resized, "bucket": placement.bucket});
    let question = |options: &BucketOptions| {
        json!({
            "resolution": options.resolution,
            "min_bucket_reso": options.min_bucket_reso,
            "max_bucket_reso": options.max_bucket_reso,
            "bucket_reso_steps": options.bucket_reso_steps,
            "bucket_no_upscale": options.bucket_no_upscale,
        })
    };
    let about_picture = |(file, placement, _): &(&ImageFile, Placement, image::RgbImage)| {
        let mut question = placed(placement);
        question["file"] = json!(file.place.shown());
        question
    };
    let answers = ask_about_buckets(&json!({
        "options": options.iter().map(question).collect::<Vec<_>>(),
        "sizes": sizes,
        "pictures": pictures.iter().map(about_picture).collect::<Vec<_>>(),
    }));
    // 3. The same places, and the same bytes.
    let mut compared = 0;
    for (options, answers) in options.iter().zip(answers["placements"].as_array().expect("answers")) {
        let buckets = Buckets::new(*options);
        for (size, answer) in sizes.iter().zip(answers.as_array().expect("answers")) {
            if let Some(placement) = buckets.place(*size) {
                assert_eq!(placed(&placement), *answer, "{size:?} with {options:?}");
                compared += 1;
            }
        }
    }
    assert!(compared > 1800, "{compared}");
    for ((file, placement, cut), answer) in
        pictures.iter().zip(answers["pixels"].as_array().expect("answers"))
    {
        assert_eq!(ContentHash::of(cut.as_raw()).to_string(), *answer, "{} at {placement:?}", file.name);
    }
}

/// "size-64-crop-0-flip-1"
fn parse_case(key: &str) -> Option<(u32, bool, bool)> {
    let mut parts = key.strip_prefix("size-")?.split('-');
    let side = parts.next()?.parse().ok()?;
    let (center_crop, flip) = (parts.nth(1)? == "1", parts.nth(1)? == "1");
    Some((side, center_crop, flip))
}

#[test]
fn adamw_follows_torch() {
    let golden = GoldenFile::open("adamw.safetensors");
    let number = |value: &Value| value.as_f64().expect("a number");
    for (name, case) in golden.metadata("cases").as_object().expect("cases") {
        let options = AdamWOptions {
            beta1: number(&case["betas"][0]),
            beta2: number(&case["betas"][1]),
            epsilon: number(&case["eps"]),
            weight_decay: number(&case["weight_decay"]),
        };
        let learning_rates: Vec<f64> = case["lrs"].as_array().expect("rates").iter().map(number).collect();
        let length = golden.floats("grads").len() / learning_rates.len();
        let key = format!("{name}/weights");
        let mut trajectory = golden.floats(&key).chunks_exact(length);
        let mut weights = trajectory.next().expect("a start").to_vec();
        let mut optimizer = AdamW::new(options, length);
        let mut steps = 0;
        let gradients = golden.floats("grads").chunks_exact(length);
        for ((gradient, expected), learning_rate) in gradients.zip(trajectory).zip(learning_rates) {
            optimizer.step(&mut weights, gradient, learning_rate);
            steps += 1;
            // Never set back to the reference: what differs would add up.
            let error = relative_error(&weights, expected);
            assert!(error <= 1e-6, "{name}, step {steps}: {error}");
        }
        assert_eq!(optimizer.count(), steps);
        assert!(steps >= 20);
    }
}

#[test]
fn learning_rates_equal_those_of_diffusers() {
    let cases = json("lr_schedules.json");
    assert!(cases.len() >= 6 * 3);
    for case in &cases {
        let name = case["lr_scheduler"].as_str().expect("a name");
        let options = LrOptions {
            curve: name.parse::<LrScheduler>().expect("a schedule that the job spec has"),
            base: case["learning_rate"].as_f64().expect("a rate"),
            warmup_steps: case["lr_warmup_steps"].as_u64().expect("steps"),
            total_steps: case["max_train_steps"].as_u64().expect("steps"),
            cycles: case["lr_num_cycles"].as_u64().expect("cycles"),
        };
        let schedule = LrSchedule::new(options).expect("a schedule");
        for (step, expected) in (1..).zip(case["lr"].as_array().expect("rates")) {
            let (ours, expected) = (schedule.at(step), expected.as_f64().expect("a rate"));
            let difference = (ours - expected).abs();
            assert!(
                difference <= 1e-14 * options.base,
                "{name}, {options:?}, step {step}: {ours}, {expected}"
            );
        }
    }
}

#[test]
fn a_posterior_sample_is_that_of_diffusers() {
    let golden = GoldenFile::open("posterior.safetensors");
    let shape = &golden.get("mean").shape;
    let length = shape[1] * shape[2] * shape[3];
    for image in 0..shape[0] {
        let part = |key: &str| golden.floats(key)[image * length..][..length].to_vec();
        let moments = Moments {
            channels: shape[1],
            height: shape[2],
            width: shape[3],
            mean: part("mean"),
            logvar: part("logvar"),
        };
        let sample = latent(&moments, &part("noise"), 1.0);
        let error = relative_error(&sample, &part("sample"));
        assert!(error <= 1e-6, "image {image}: {error}");
    }
}

#[test]
fn what_may_come_next_is_what_the_warpers_of_transformers_leave() {
    let golden = GoldenFile::open("sampling.safetensors");
    let logits = golden.floats("logits");
    let cases = golden.metadata("cases").as_object().unwrap();
    assert!(cases.len() >= 8);
    for (case, options) in cases {
        let number = |key: &str| options[key].as_f64().unwrap();
        let sampling = Sampling {
            temperature: number("temperature"),
            top_k: number("top_k") as u32,
            top_p: number("top_p"),
        };
        let expected = golden.floats(&format!("{case}/probabilities"));
        for (row, (logits, expected)) in logits.chunks(500).zip(expected.chunks(500)).enumerate() {
            let mut ours = vec![0f32; 500];
            for (id, probability) in sampling.choices(logits).unwrap() {
                ours[id as usize] = probability as f32;
            }
            // The same tokens, but for those whose probability vanishes in single precision.
            let same = ours.iter().zip(expected).all(|(one, other)| (*one > 0.0) == (*other > 0.0));
            assert!(same, "{case} {row}");
            let error = relative_error(&ours, expected);
            assert!(error <= 1e-5, "{case} {row}: {error:.2e}");
        }
    }
}
